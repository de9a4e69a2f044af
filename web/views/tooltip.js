// One tooltip for all words: shows what `data-about` says, on hover and on touch.

export function followWords(root, tip) {
  let shownFor = null;
  const hide = () => {
    tip.hidden = true;
    shownFor = null;
  };
  root.addEventListener("pointerover", ({ target }) => {
    const about = target.dataset?.about;
    if (!about) return hide();
    if (target === shownFor) return undefined;
    shownFor = target;
    tip.textContent = about;
    tip.hidden = false;
    const word = target.getBoundingClientRect();
    const box = tip.getBoundingClientRect();
    const left = Math.min(Math.max(8, word.left + word.width / 2 - box.width / 2), innerWidth - box.width - 8);
    tip.style.left = `${left}px`;
    tip.style.top = `${word.top > box.height + 14 ? word.top - box.height - 8 : word.bottom + 8}px`;
    return undefined;
  });
  root.addEventListener("pointerleave", hide);
  addEventListener("scroll", hide, { passive: true });
  addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
}
