// Before and after in one frame, with a range over it: pointer and keys are the browser's own.

export class Compare {
  constructor(element, views) {
    this.element = element;
    this.stage = element.querySelector(".stage");
    this.after = element.querySelector(".after");
    this.before = element.querySelector(".before");
    this.range = element.querySelector("input");
    this.views = views;
    this.range.addEventListener("input", () => this.#place());
    this.stage.addEventListener("scroll", () => this.#place(), { passive: true });
    views.addEventListener("change", ({ target }) => this.#view(target.value));
    new ResizeObserver(() => this.#place()).observe(element);
  }

  /** Shows two images by their addresses; false if the first cannot be shown, or is not the same picture turned alike. */
  async show(before, after, scale) {
    this.after.src = after;
    await this.after.decode();
    const { naturalWidth: width, naturalHeight: height } = this.after;
    const pixels = 1 / devicePixelRatio;
    this.element.style.setProperty("--ratio", width / height);
    this.element.style.setProperty("--width", `${width * pixels}px`);
    this.element.style.setProperty("--height", `${height * pixels}px`);
    this.before.src = before;
    const shown = await this.before.decode().then(() => true, () => false);
    const same = shown && this.before.naturalWidth * scale === width && this.before.naturalHeight * scale === height;
    this.element.classList.toggle("alone", !same);
    this.range.value = 50;
    this.views.querySelector("input").checked = true;
    this.#view("whole");
    return same;
  }

  #view(name) {
    const detail = name === "detail";
    this.element.classList.toggle("detail", detail);
    this.stage.toggleAttribute("tabindex", detail);
    if (detail) {
      this.stage.tabIndex = 0;
      this.stage.scrollTo((this.stage.scrollWidth - this.stage.clientWidth) / 2, (this.stage.scrollHeight - this.stage.clientHeight) / 2);
    }
    this.#place();
  }

  #place() {
    const style = this.element.style;
    style.setProperty("--at", this.range.value / 100);
    style.setProperty("--view", `${this.element.clientWidth}px`);
    style.setProperty("--scrolled", `${this.stage.scrollLeft}px`);
    this.range.setAttribute("aria-valuetext", `${this.range.value} % before`);
  }
}
