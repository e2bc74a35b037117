// What a page's pictures look like once the browser has laid them out. Evaluates to {problems, pictures}.
(() => {
  const problems = [];
  const SLACK_PX = 1.5;
  const MARKS = "polyline, path, rect, circle";

  const luminance = (colour) => {
    const [red, green, blue] = colour.match(/[\d.]+/g).slice(0, 3).map((part) => {
      const share = part / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const paper = luminance(getComputedStyle(document.body).backgroundColor);
  const contrast = (colour) => {
    const ink = luminance(colour);
    return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
  };
  const colourOf = (shape) => {
    const style = getComputedStyle(shape);
    return shape.tagName === "line" || style.fill === "none" ? style.stroke : style.fill;
  };
  const inside = (box, frame) =>
    box.left >= frame.left - SLACK_PX && box.right <= frame.right + SLACK_PX &&
    box.top >= frame.top - SLACK_PX && box.bottom <= frame.bottom + SLACK_PX;
  const overlap = (one, other) =>
    Math.min(one.right, other.right) - Math.max(one.left, other.left) > SLACK_PX &&
    Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top) > SLACK_PX;

  const checkShape = (shape, frame, say) => {
    for (const attribute of shape.attributes)
      if (/NaN|Infinity|undefined|nan|inf\b/.test(attribute.value)) say(`${attribute.name} is ${attribute.value}`);
    const box = shape.getBoundingClientRect();
    if (![box.left, box.right, box.top, box.bottom].every(Number.isFinite)) say("it lies nowhere");
    if (!inside(box, frame)) say(`it leaves the picture: ${JSON.stringify(box)} in ${JSON.stringify(frame)}`);
    if (box.width + box.height <= 0) say("it is empty");
    if (colourOf(shape) === "none") say("it has no colour");
    else if (contrast(colourOf(shape)) < 1.2) say(`it is as light as the page: ${colourOf(shape)}`);
  };
  const checkText = (text, frame, say) => {
    const box = text.getBoundingClientRect();
    if (!(box.width > 0 && box.height > 0)) say("it is not shown");
    if (!inside(box, frame)) say("it leaves the picture");
    if (box.height < 8) say(`it is ${box.height} px high`);
    if (contrast(getComputedStyle(text).fill) < 4.5) say("it is as light as the page");
    return { box, said: text.textContent };
  };

  const pictures = [...document.querySelectorAll('svg[role="img"]')].map((svg) => {
    const name = svg.querySelector("title").textContent;
    const frame = svg.getBoundingClientRect();
    if (!(frame.width > 100 && frame.height > 60)) problems.push(`${name}: it is ${frame.width} × ${frame.height} px`);
    const shapes = [...svg.querySelectorAll(MARKS)];
    for (const shape of [...shapes, ...svg.querySelectorAll("line")])
      checkShape(shape, frame, (what) => problems.push(`${name}: ${shape.tagName}.${shape.getAttribute("class")}: ${what}`));
    const texts = [...svg.querySelectorAll("text")].map((text) =>
      checkText(text, frame, (what) => problems.push(`${name}: “${text.textContent}”: ${what}`)));
    texts.forEach((one, at) => texts.slice(at + 1).forEach((other) => {
      if (overlap(one.box, other.box)) problems.push(`${name}: “${one.said}” and “${other.said}” overlap`);
    }));
    return { name, shapes: shapes.map((shape) => shape.getAttribute("class")), texts: texts.map((text) => text.said) };
  });
  return { problems, pictures };
})()
