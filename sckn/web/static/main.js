import { info, sentence } from "./api.js";
import { Classify } from "./classify.js";
import { Enlarge } from "./enlarge.js";
import { listen } from "./picker.js";
import { useTabs } from "./tabs.js";

useTabs(document.querySelector("[role=tablist]"));

try {
  const offer = await info();
  document.getElementById("version").textContent = `sckn ${offer.version}`;
  tellMissing([...offer.upscalers, ...offer.classifiers].filter((model) => !model.available));
  listen([new Enlarge(offer).picker, new Classify(offer).picker]);
} catch (error) {
  document.getElementById("enlarge-problem").textContent = error.message;
}

function tellMissing(models) {
  const details = document.getElementById("missing");
  details.hidden = !models.length;
  details.querySelector("summary").textContent = `Models that are not installed here: ${models.map((model) => model.name).join(", ")}`;
  details.querySelector("ul").replaceChildren(
    ...models.map((model) => Object.assign(document.createElement("li"), { textContent: sentence(model.problem) })),
  );
}
