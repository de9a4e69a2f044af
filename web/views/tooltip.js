// One tooltip for all words: shows what `data-about` says, on hover, on touch, and with the arrow keys in a transcript.

const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

// `told` is a live region: what the keys have come to is said there.
export function followWords(root, tip, textOf) {
  let shownFor = null;
  const hide = () => {
    tip.hidden = true;
    shownFor?.classList.remove("current");
    shownFor = null;
  };
  const show = (node) => {
    hide();
    shownFor = node;
    node.classList.add("current");
    tip.textContent = node.dataset.about;
    tip.hidden = false;
    const word = node.getBoundingClientRect();
    const box = tip.getBoundingClientRect();
    const left = Math.min(Math.max(8, word.left + word.width / 2 - box.width / 2), innerWidth - box.width - 8);
    tip.style.left = `${left}px`;
    tip.style.top = `${word.top > box.height + 14 ? word.top - box.height - 8 : word.bottom + 8}px`;
  };
  root.addEventListener("pointerover", ({ target }) => {
    if (!target.dataset?.about) hide();
    else if (target !== shownFor) show(target);
  });
  root.addEventListener("pointerleave", hide);
  root.addEventListener("focusout", hide);
  root.addEventListener("keydown", (event) => {
    const step = STEPS[event.key];
    if (!step || !event.target.classList.contains("lines")) return;
    event.preventDefault();
    const words = [...event.target.querySelectorAll(".word")];
    const at = words.indexOf(shownFor);
    const next = words[at < 0 ? (step > 0 ? 0 : words.length - 1) : Math.min(words.length - 1, Math.max(0, at + step))];
    if (!next) return;
    next.scrollIntoView({ block: "nearest" });
    show(next);
    textOf.textContent = `${next.textContent}: ${next.dataset.about}`;
  });
  addEventListener("scroll", ({ target }) => { if (target === document && !shownFor?.closest(".lines:focus")) hide(); }, { passive: true });
  addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
}
