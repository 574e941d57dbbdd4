// Renders the OpenAPI document of this server.

const make = (tag, text = "", className = "") => Object.assign(document.createElement(tag), { textContent: text, className });

try {
  const spec = await (await fetch("/openapi.json")).json();
  document.getElementById("description").textContent = spec.info.description;
  for (const [path, methods] of Object.entries(spec.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      document.getElementById("operations").append(article(spec, path, method, operation));
    }
  }
} catch {
  document.getElementById("problem").textContent = "The description cannot be loaded. Is the server still running?";
}

function article(spec, path, method, operation) {
  const result = make("article", "", "operation");
  const title = make("h2");
  title.append(make("span", method.toUpperCase()), path);
  result.append(title, make("p", operation.description ?? operation.summary));
  const form = Object.values(operation.requestBody?.content ?? {})[0];
  const parameters = (operation.parameters ?? []).map((each) => [each.name, describe(spec, each.schema, each.required)]);
  if (parameters.length) result.append(make("h3", "In the address"), list(parameters));
  if (form) result.append(make("h3", "In the form (multipart/form-data)"), list(fields(spec, form.schema)));
  const answers = Object.entries(operation.responses);
  result.append(make("h3", "Answers"), list(answers.map(([status, answer]) => [status, meaning(answer)])));
  const schema = answers.find(([status]) => status.startsWith("2"))[1].content?.["application/json"]?.schema;
  if (schema) result.append(make("h3", "In the answer"), list(fields(spec, schema)));
  result.append(make("h3", "Example"), make("pre", example(path, method, form)));
  return result;
}

function list(rows) {
  const result = make("dl");
  for (const [name, text] of rows) result.append(make("dt", name), make("dd", text));
  return result;
}

function resolve(spec, schema) {
  return schema.$ref ? spec.components.schemas[schema.$ref.split("/").at(-1)] : schema;
}

function meaning({ description, content = {} }) {
  return [description, ...Object.keys(content).filter((kind) => kind !== "application/json")].join(", ");
}

/** Rows of names and descriptions; what lies inside another field has a dotted name. */
function fields(spec, schema) {
  const { properties = {}, required = [] } = resolve(spec, schema);
  return Object.entries(properties).flatMap(([name, each]) => {
    const inner = each.items ? fields(spec, each.items) : fields(spec, each);
    const start = each.items ? `${name}[]` : name;
    return [[name, describe(spec, each, required.includes(name))], ...inner.map(([key, text]) => [`${start}.${key}`, text])];
  });
}

function describe(spec, schema, required) {
  const choice = (schema.allOf ?? schema.anyOf ?? []).find((each) => each.type !== "null");
  const whole = { ...resolve(spec, choice ?? schema), ...schema };
  const words = [whole.description?.replace(/[.]$/, "")];
  if (whole.enum) words.push(`one of ${whole.enum.join(", ")}`);
  else words.push(whole.items ? "list" : whole.contentMediaType ? "file" : whole.type);
  if (schema.default !== undefined && schema.default !== null) words.push(`${schema.default} by default`);
  if (!required && schema.default === undefined) words.push("may be missing");
  return words.filter(Boolean).join("; ");
}

function example(path, method, form) {
  const words = ["curl"];
  if (method === "delete") words.push("-X DELETE");
  if (path.endsWith("/events")) words.push("-N");
  if (path.endsWith("/result")) words.push("-OJ");
  if (form) words.push(path.endsWith("/jobs") ? "-F photo=@photo.jpg -F scale=2 -F quality=fast" : "-F image=@image.jpg");
  words.push(location.origin + path.replace("{id}", "ID"));
  return words.join(" ");
}
