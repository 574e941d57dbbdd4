// Choosing an image: from a dialog, by dropping it, by pasting it.

/** `onChoice` is called with each file that is chosen in the picker. */
export class Picker {
  constructor(element, onChoice) {
    this.element = element;
    this.panel = element.closest("[role=tabpanel]");
    this.input = element.querySelector("input");
    this.preview = element.querySelector(".preview");
    this.text = element.querySelector(".picker-text");
    this.onChoice = onChoice;
    this.input.addEventListener("change", () => this.take(this.input.files));
    this.preview.addEventListener("error", () => (this.preview.hidden = true));
  }

  get visible() {
    return !this.panel.hidden;
  }

  take(files) {
    const file = files && files[0];
    if (!file || this.input.disabled) return;
    if (this.preview.src) URL.revokeObjectURL(this.preview.src);
    this.preview.hidden = false;
    this.preview.src = URL.createObjectURL(file);
    const name = document.createElement("strong");
    name.textContent = file.name;
    const hint = document.createElement("span");
    hint.textContent = files.length > 1 ? `The first of ${files.length} files; one at a time` : "Choose, drop or paste another";
    this.text.replaceChildren(name, hint);
    this.element.classList.add("filled");
    this.onChoice(file);
    this.input.value = ""; // so that the same file can be chosen again
  }

  set busy(value) {
    this.input.disabled = value;
  }
}

/** Files that are dropped or pasted anywhere go to the picker that is to be seen. */
export function listen(pickers) {
  const current = () => pickers.find((picker) => picker.visible);
  let depth = 0; // dragenter and dragleave come for every element under the pointer
  const mark = (on) => current().element.classList.toggle("dragging", on);

  addEventListener("dragenter", (event) => {
    depth += 1;
    if (event.dataTransfer?.types.includes("Files")) mark(true);
  });
  addEventListener("dragleave", () => {
    depth -= 1;
    if (depth <= 0) mark(false);
  });
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    depth = 0;
    mark(false);
    current().take(event.dataTransfer.files);
  });
  addEventListener("paste", (event) => {
    if (event.clipboardData?.files.length) {
      event.preventDefault();
      current().take(event.clipboardData.files);
    }
  });
}
