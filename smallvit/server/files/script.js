"use strict";
(() => {
  const of = (id) => document.getElementById(id);
  const limit = Number(document.body.dataset.upload);
  let current = null;
  let shown = null;

  const say = (sentence, bad = false) => {
    of("say").textContent = sentence;
    of("say").className = bad ? "bad" : "";
  };

  const refuse = (sentence) => {
    of("result").hidden = true;
    of("best").textContent = "";
    say(sentence, true);
  };

  const share = (value) => (value < 0.0005 ? "< 0.1" : (100 * value).toFixed(1)) + "\u00a0%";

  const row = ({ name, probability }) => {
    const item = document.createElement("li");
    const line = document.createElement("span");
    line.className = "line";
    for (const [kind, tag, text] of [["name", "bdi", name], ["share", "span", share(probability)]]) {
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
    if (shown) URL.revokeObjectURL(shown);
    shown = URL.createObjectURL(file);
    of("given").hidden = false;
    of("image").src = shown;
  };

  const tell = (answer) => {
    of("best").textContent = `Most likely: ${answer.classes[0].name}`;
    of("classes").replaceChildren(...answer.classes.map(row));
    of("map").hidden = !answer.map;
    if (answer.map) {
      const attention = answer.map.kind === "attention";
      of("heat").src = answer.map.image;
      of("heat").alt = attention ? "Your image in grey, coloured where the model looked" : "Your image in grey, coloured where it speaks for the answer";
      of("what").textContent = attention ? "Where the model looked" : "What speaks for the answer";
    }
    of("time").textContent = `Answered by ${answer.model} in ${Math.round(answer.milliseconds)} ms. Probabilities are calibrated on images like those it was trained on; of other images they say little.`;
    say("");
    of("result").hidden = false;
  };

  const give = async (file) => {
    if (current) current.abort();
    if (file.size > limit) {
      refuse(`This image has more than ${document.body.dataset.largest}. Save it smaller, then try again.`);
      return;
    }
    const mine = (current = new AbortController());
    say("Looking …");
    const form = new FormData();
    form.append("image", file);
    try {
      const response = await fetch("predict?explain=true", { method: "POST", body: form, signal: mine.signal });
      const answer = await response.json();
      if (mine.signal.aborted) return;
      if (!response.ok) {
        refuse(answer.error);
        return;
      }
      preview(file);
      tell(answer);
      const below = of("result").getBoundingClientRect().top > 0.6 * window.innerHeight;
      if (below) of("best").scrollIntoView();
    } catch (error) {
      if (error.name === "AbortError") return;
      refuse("The server did not answer. Is it still running?");
    }
  };

  const take = (files) => {
    const file = [...(files || [])].find((each) => each.type.startsWith("image/")) || (files && files[0]);
    if (file) give(file);
    else refuse("There is no image file in that. Save the image first, then choose the file.");
  };

  of("image").addEventListener("error", () => {
    of("given").hidden = true;
  });
  of("image").addEventListener("load", ({ target }) => {
    target.classList.toggle("tiny", Math.max(target.naturalWidth, target.naturalHeight) <= 128);
  });
  for (const id of ["file", "camera"]) {
    of(id).addEventListener("change", ({ target }) => {
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
  of("give").addEventListener("submit", (event) => event.preventDefault());
})();
