// The first tab: a photograph is uploaded, its progress watched, the result compared and downloaded.

import { deleteJob, fetchResult, startJob } from "./api.js";
import { Compare } from "./compare.js";
import { Picker } from "./picker.js";
import { watchJob } from "./watch.js";

const $ = (id) => document.getElementById(id);
const size = (width, height) => `${width} × ${height}`;

export class Enlarge {
  constructor(offer) {
    this.offer = offer;
    this.form = $("enlarge-form");
    this.picker = new Picker($("enlarge-picker"), (photo) => this.#choose(photo));
    this.compare = new Compare($("compare"), $("views"));
    this.photo = null;
    this.photoSize = null;
    this.job = null;
    this.abort = null;
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#run();
    });
    this.form.addEventListener("change", () => this.#refresh());
    $("cancel").addEventListener("click", () => this.abort?.abort());
    addEventListener("pagehide", () => this.job && deleteJob(this.job));
    this.#offerModels();
  }

  get #settings() {
    const { scale, quality, format } = Object.fromEntries(new FormData(this.form));
    return { scale, quality, format };
  }

  #has(scale, quality) {
    return this.offer.upscalers.some((each) => each.available && each.scale === Number(scale) && each.quality === quality);
  }

  #offerModels() {
    const { limits, upscalers } = this.offer;
    const megabytes = Math.floor(limits.upload_bytes / 2 ** 20);
    $("photo-hint").textContent =
      `JPEG, PNG, WebP, TIFF and more, up to ${megabytes} MB and ${limits.input_pixels / 1e6} megapixels; ` +
      `the result may have ${limits.output_pixels / 1e6} megapixels.`;
    const first = upscalers.find((each) => each.available);
    if (first) {
      $(`scale-${first.scale}`).checked = true;
      $(`quality-${first.quality}`).checked = true;
    } else {
      this.#tell("No model for photographs is installed on this server, so that none can be enlarged here.");
    }
    this.#refresh();
  }

  async #choose(photo) {
    this.photo = photo;
    this.photoSize = null;
    this.#tell("");
    $("result").hidden = true;
    this.#refresh();
    if (photo.size > this.offer.limits.upload_bytes) {
      const megabytes = this.offer.limits.upload_bytes / 2 ** 20;
      this.photo = null;
      this.#tell(`This file has ${(photo.size / 2 ** 20).toFixed(1)} MB, and at most ${+megabytes.toFixed(1)} MB are taken here.`);
      this.#refresh();
      return;
    }
    const preview = this.picker.preview;
    await preview.decode().catch(() => {}); // what the browser cannot show, the server may read all the same
    if (this.photo === photo && preview.naturalWidth) {
      this.photoSize = [preview.naturalWidth, preview.naturalHeight];
      this.#refresh();
    }
  }

  #refresh() {
    const scale = Number(this.form.elements.scale.value);
    for (const input of this.form.elements.scale) {
      input.disabled = !this.#has(input.value, "quality") && !this.#has(input.value, "fast");
    }
    for (const input of this.form.elements.quality) input.disabled = !this.#has(scale, input.value);
    const usable = [...this.form.elements.quality].find((input) => !input.disabled);
    if (usable && this.form.elements.quality[0].disabled !== this.form.elements.quality[1].disabled) usable.checked = true;
    const busy = this.abort !== null;
    for (const choices of this.form.querySelectorAll("fieldset")) choices.disabled = busy;
    this.picker.busy = busy;
    const obstacle = this.#obstacle(scale);
    $("start").disabled = busy || !this.photo || !usable || obstacle !== "";
    $("start").textContent = `Enlarge ×${scale}`;
    $("cancel").hidden = !busy;
    const sizes = this.photoSize && [this.photoSize, this.photoSize.map((side) => side * scale)].map((sides) => size(...sides));
    $("sizes").textContent = sizes ? `${sizes.join(" → ")} pixels${obstacle}` : "";
  }

  /** Why the server would not do it, if it would not: that need not be uploaded to be known. */
  #obstacle(scale) {
    const { input_pixels, output_pixels } = this.offer.limits;
    const pixels = this.photoSize ? this.photoSize[0] * this.photoSize[1] : 0;
    if (pixels > input_pixels) return `, but at most ${input_pixels / 1e6} megapixels are read here`;
    return pixels * scale ** 2 > output_pixels ? `, but results here have at most ${output_pixels / 1e6} megapixels` : "";
  }

  async #run() {
    if (this.abort || !this.photo) return;
    const settings = this.#settings;
    const signal = (this.abort = new AbortController()).signal;
    this.#tell("");
    $("result").hidden = true;
    const withKeys = document.activeElement === $("start");
    this.#refresh();
    if (withKeys) $("cancel").focus(); // a button that is disabled loses the focus, and with it the place on the page
    this.#progress(0, "Uploading …");
    $("progress").scrollIntoView({ block: "nearest" });
    try {
      const started = await startJob(this.photo, settings, signal);
      this.job = started.id;
      const clock = new Clock();
      const watched = {
        onChange: (each) => this.#showStatus(each, clock),
        onLost: () => ($("progress-text").textContent = "The connection is lost; trying again …"),
        patience: this.offer.limits.patience,
      };
      const status = await watchJob(this.job, watched, signal);
      this.#progress(100, "Fetching the result …");
      const blob = await fetchResult(this.job, signal);
      await this.#show(blob, status, Number(settings.scale));
      $("enlarge-status").textContent = "The photograph is ready.";
    } catch (error) {
      if (signal.aborted) $("enlarge-status").textContent = "Cancelled.";
      else this.#tell(error.message);
    } finally {
      if (this.job) deleteJob(this.job); // what was fetched is here, and needs to be nowhere else
      this.job = this.abort = null;
      $("progress").hidden = true;
      const cancelling = document.activeElement === $("cancel");
      this.#refresh();
      if (cancelling) $("start").focus();
    }
  }

  #showStatus(status, clock) {
    if (status.state === "waiting") {
      const others = status.ahead === 1 ? "1 photograph is" : `${status.ahead} photographs are`;
      this.#progress(0, status.ahead ? `Waiting: ${others} before yours.` : "Waiting …");
    } else if (!status.tiles) {
      this.#progress(0, "Reading the photograph …");
    } else if (status.tiles_done < status.tiles) {
      const left = clock.left(status.tiles_done, status.tiles);
      this.#progress((100 * status.tiles_done) / status.tiles, `Part ${status.tiles_done} of ${status.tiles}${left}`);
    } else {
      this.#progress(100, "Writing the file …");
    }
  }

  #progress(percent, text) {
    const bar = document.querySelector("#progress .bar");
    $("progress").hidden = false;
    bar.setAttribute("aria-valuenow", Math.round(percent));
    bar.setAttribute("aria-valuetext", text);
    bar.style.setProperty("--done", `${percent}%`);
    $("progress-text").textContent = text;
  }

  async #show(blob, status, scale) {
    for (const image of [this.compare.before, this.compare.after]) if (image.src) URL.revokeObjectURL(image.src);
    const address = URL.createObjectURL(blob);
    $("download").href = address;
    $("download").download = status.file_name;
    $("result-sizes").textContent = `${size(status.width, status.height)} pixels, ${(blob.size / 2 ** 20).toFixed(1)} MB`;
    $("result-notes").replaceChildren(
      ...status.notes.map((note) => Object.assign(document.createElement("li"), { textContent: note })),
    );
    $("result-notes").hidden = !status.notes.length;
    $("result").hidden = false;
    $("no-before").hidden = await this.compare.show(URL.createObjectURL(this.photo), address, scale);
    this.compare.range.focus({ preventScroll: true });
    $("result").scrollIntoView({ block: "nearest" });
  }

  #tell(problem) {
    $("enlarge-problem").textContent = problem;
  }
}

/** How long it still takes, from how long it took. */
class Clock {
  left(done, total) {
    const now = performance.now();
    this.start ??= { now, done };
    if (done - this.start.done < 2) return "";
    const seconds = (((now - this.start.now) / (done - this.start.done)) * (total - done)) / 1000;
    if (seconds < 2) return "";
    return seconds < 90 ? ` · about ${Math.ceil(seconds)} seconds left` : ` · about ${Math.ceil(seconds / 60)} minutes left`;
  }
}
