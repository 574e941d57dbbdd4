// The second tab: an image is uploaded, and the classes of the model come back with their scores.

import { classify } from "./api.js";
import { Picker } from "./picker.js";

const $ = (id) => document.getElementById(id);

export class Classify {
  constructor(offer) {
    this.offer = offer;
    this.model = offer.classifiers.find((each) => each.available);
    this.picker = new Picker($("classify-picker"), (image) => this.#run(image));
    this.picker.busy = !this.model;
    this.abort = null;
    if (this.model) {
      const { upload_bytes, input_pixels } = offer.limits;
      $("image-hint").textContent =
        `Classified by ${this.model.name}. Up to ${Math.floor(upload_bytes / 2 ** 20)} MB and ${input_pixels / 1e6} megapixels.`;
    } else {
      $("classify-problem").textContent = "No model that classifies is installed on this server.";
    }
  }

  async #run(image) {
    this.abort?.abort(); // the last choice counts
    const signal = (this.abort = new AbortController()).signal;
    $("scores").hidden = true;
    $("classify-problem").textContent = "";
    $("classify-status").textContent = "Looking …";
    try {
      if (image.size > this.offer.limits.upload_bytes) throw new Error("This file is too large; choose a smaller one.");
      this.#show(await classify(image, signal));
      $("classify-status").textContent = "";
    } catch (error) {
      if (signal.aborted) return;
      $("classify-status").textContent = "";
      $("classify-problem").textContent = error.message;
    }
  }

  #show({ scores }) {
    const values = scores.map((each) => each.score);
    const [most, least] = [Math.max(...values), Math.min(...values)];
    $("scores-title").textContent = scores[0].name;
    document.querySelector(".scores").replaceChildren(...scores.map((each) => row(each, (each.score - least) / (most - least || 1))));
    $("scores").hidden = false;
  }
}

function row({ name, score }, share) {
  const item = document.createElement("li");
  const part = (className, text = "") => Object.assign(document.createElement("span"), { className, textContent: text });
  const track = Object.assign(document.createElement("div"), { className: "track" });
  track.setAttribute("aria-hidden", "true");
  track.append(document.createElement("div"));
  track.style.setProperty("--share", `${3 + 97 * share}%`);
  item.append(part("name", name), track, part("score", score.toFixed(2).replace("-", "−")));
  return item;
}
