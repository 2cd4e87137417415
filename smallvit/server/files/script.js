"use strict";
(() => {
  const element = (id) => document.getElementById(id);
  const limit = Number(document.body.dataset.upload);
  let current = null;
  let previewUrl = null;

  const setStatus = (sentence, bad = false) => {
    element("status").textContent = sentence;
    element("status").className = bad ? "bad" : "";
  };

  const refuse = (sentence) => {
    element("result").hidden = true;
    element("best").textContent = "";
    setStatus(sentence, true);
  };

  const percent = (value) => (value < 0.0005 ? "< 0.1" : (100 * value).toFixed(1)) + "\u00a0%";

  const row = ({ name, probability }) => {
    const item = document.createElement("li");
    const line = document.createElement("span");
    line.className = "line";
    for (const [kind, tag, text] of [["name", "bdi", name], ["share", "span", percent(probability)]]) {
      const part = document.createElement(tag);
      part.className = kind;
      part.textContent = text;
      line.append(part);
    }
    const track = document.createElement("span");
    track.className = "track";
    const fill = document.createElement("span");
    fill.className = "fill";
    fill.style.width = `${100 * probability}%`;
    track.append(fill);
    item.append(line, track);
    return item;
  };

  const preview = (file) => {
    if (previewUrl) URL.revokeObjectURL(previewUrl);
    previewUrl = URL.createObjectURL(file);
    element("preview").hidden = false;
    element("image").src = previewUrl;
  };

  const show = (predictions) => {
    element("best").textContent = `Most likely: ${predictions.classes[0].name}`;
    element("classes").replaceChildren(...predictions.classes.map(row));
    element("map").hidden = !predictions.map;
    if (predictions.map) {
      const attention = predictions.map.kind === "attention";
      element("heat").src = predictions.map.image;
      element("heat").alt = attention ? "Your image in grey, coloured where the model looked" : "Your image in grey, coloured where it supports the prediction";
      element("caption").textContent = attention ? "Where the model looked" : "What supports the prediction";
      const note = predictions.map.note;
      element("note").textContent = note ? `${note[0].toUpperCase()}${note.slice(1)}.` : "";
    }
    element("time").textContent = `Predicted by ${predictions.model} in ${Math.round(predictions.milliseconds)} ms. Probabilities are calibrated on images like those it was trained on; for other images they mean little.`;
    setStatus("");
    element("result").hidden = false;
  };

  const predict = async (file) => {
    if (current) current.abort();
    if (file.size > limit) {
      refuse(`This image has more than ${document.body.dataset.largest}. Save it smaller, then try again.`);
      return;
    }
    const mine = (current = new AbortController());
    setStatus("Predicting …");
    const form = new FormData();
    form.append("image", file);
    try {
      const response = await fetch("predict?explain=true", { method: "POST", body: form, signal: mine.signal });
      const predictions = await response.json();
      if (mine.signal.aborted) return;
      if (!response.ok) {
        refuse(predictions.error);
        return;
      }
      preview(file);
      show(predictions);
      const below = element("result").getBoundingClientRect().top > 0.6 * window.innerHeight;
      if (below) element("best").scrollIntoView();
    } catch (error) {
      if (error.name === "AbortError") return;
      refuse("The server did not answer. Is it still running?");
    }
  };

  const take = (files) => {
    const file = [...(files || [])].find((each) => each.type.startsWith("image/")) || (files && files[0]);
    if (file) predict(file);
    else refuse("There is no image file in that. Save the image first, then choose the file.");
  };

  element("image").addEventListener("error", () => {
    element("preview").hidden = true;
  });
  element("image").addEventListener("load", ({ target }) => {
    target.classList.toggle("tiny", Math.max(target.naturalWidth, target.naturalHeight) <= 128);
  });
  for (const id of ["file", "camera"]) {
    element(id).addEventListener("change", ({ target }) => {
      if (target.files.length) take(target.files);
      target.value = "";
    });
  }
  document.addEventListener("paste", ({ clipboardData }) => take(clipboardData && clipboardData.files));
  for (const kind of ["dragover", "dragleave", "drop"]) {
    document.addEventListener(kind, (event) => {
      event.preventDefault();
      document.body.classList.toggle("over", kind === "dragover");
      if (kind === "drop") take(event.dataTransfer.files);
    });
  }
  element("upload").addEventListener("submit", (event) => event.preventDefault());
})();
