// What a reader sees of the page in the frame, as facts. Lengths in CSS pixels.
function look(frame) {
  const page = frame.contentDocument, root = page.documentElement, width = frame.contentWindow.innerWidth;
  const words = (node) => node.textContent.trim().replace(/\s+/g, " ").slice(0, 60);

  // Every text that is drawn, with the element that styles it.
  const texts = [];
  const walk = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    const range = page.createRange();
    range.selectNodeContents(node);
    const boxes = [...range.getClientRects()].filter((box) => box.width && box.height);
    if (words(node) && boxes.length && node.parentElement.checkVisibility({ contentVisibilityAuto: true })) texts.push({ node, by: node.parentElement, boxes });
  }

  const fontPixels = (element) => {
    const drawn = element.getScreenCTM ? element.getScreenCTM().a : 1; // a drawing is scaled as a whole
    return parseFloat(frame.contentWindow.getComputedStyle(element).fontSize) * drawn;
  };

  // Contrast of WCAG 2.2: (lighter + 0.05) / (darker + 0.05).
  const channels = (color) => (color.match(/[\d.]+/g) || []).map(Number);
  const luminance = (color) => {
    const [r, g, b] = channels(color).slice(0, 3).map((part) => {
      const s = part / 255;
      return s <= 0.04045 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = frame.contentWindow.getComputedStyle(at).backgroundColor;
      const parts = channels(color);
      if (parts.length === 3 || parts[3] > 0) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const contrast = (element) => {
    const style = frame.contentWindow.getComputedStyle(element);
    const ink = luminance(element.ownerSVGElement ? style.fill : style.color);
    const paper = luminance(behind(element));
    return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
  };

  const overlap = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
  const overlapping = [];
  texts.forEach((one, n) => texts.slice(n + 1).forEach((other) => {
    if (one.boxes.some((a) => other.boxes.some((b) => overlap(a, b))))
      overlapping.push(words(one.node) + " | " + words(other.node));
  }));

  return {
    width,
    scrolls: root.scrollWidth,
    dark: frame.contentWindow.matchMedia("(prefers-color-scheme: dark)").matches,
    paper: behind(page.body),
    text: page.body.innerText,
    outside: texts.filter(({ by, boxes }) => {
      const drawing = by.ownerSVGElement && by.ownerSVGElement.getBoundingClientRect(); // it cuts off what leaves it
      const { left, right } = drawing || { left: 0, right: width };
      return boxes.some((box) => box.left < left - 0.5 || box.right > right + 0.5);
    })
      .map(({ node }) => words(node)),
    overlapping,
    small: texts.filter(({ by }) => fontPixels(by) < 12).map(({ node, by }) => [words(node), fontPixels(by)]),
    pale: texts.filter(({ by }) => contrast(by) < 4.5).map(({ node, by }) => [words(node), contrast(by)]),
    low: [...page.querySelectorAll("summary")].map((one) => one.getBoundingClientRect().height)
      .filter((height) => height < 24),
    drawings: [...page.querySelectorAll("svg")].map((one) => one.getBoundingClientRect().width),
    fetched: frame.contentWindow.performance.getEntriesByType("resource").map((one) => one.name),
  };
}

addEventListener("load", () => {
  const found = [...document.querySelectorAll("iframe")].map((frame) => {
    const closed = look(frame);
    frame.contentDocument.querySelectorAll("summary").forEach((one) => one.click());
    return { closed, open: look(frame) };
  });
  document.getElementById("found").textContent = JSON.stringify(found);
});
