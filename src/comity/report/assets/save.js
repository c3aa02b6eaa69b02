// Save a plot: always light, with title and legend.

function picture(plot) {
  const theme = THEMES.light,
    inner = new Frame(plot.wide ? 860 : 620, theme),
    key = (plot.draw(inner) || []).filter((entry) => !entry.cell || !state.hidden[entry.label]);
  const outer = new Frame(inner.width + 40, theme);
  const back = outer.add("rect", { width: outer.width, fill: theme.page });
  outer.text(20, 30, shorten(plot.title(), inner.width - 20, 15), { size: 15, weight: 650, colour: theme.ink });
  fill(inner.root, { x: 20, y: 46 }, []);
  outer.root.append(inner.root);
  let x = 20,
    y = inner.height + 62;
  for (const entry of key) {
    const width = 32 + widthOf(entry.label, 11) + 14;
    if (x + width > outer.width - 20) {
      x = 20;
      y += 20;
    }
    const mark = swatch(entry, theme);
    fill(mark, { x, y }, []);
    outer.root.append(mark);
    outer.text(x + 30, y + 11, entry.label, { colour: theme.ink });
    x += width;
  }
  outer.end(y + (key.length ? 32 : 6));
  back.setAttribute("height", outer.height);
  return outer;
}

function save(plot, kind) {
  const drawn = picture(plot),
    text = new XMLSerializer().serializeToString(drawn.root);
  const file = (blob) => {
    const link = html("a", { href: URL.createObjectURL(blob), download: `comity-${plot.id}.${kind}` });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  const vector = new Blob([text], { type: "image/svg+xml" });
  if (kind === "svg") return file(vector);
  const image = new Image(),
    scale = 2.5;
  image.onload = () => {
    const canvas = document.createElement("canvas");
    canvas.width = drawn.width * scale;
    canvas.height = drawn.height * scale;
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob(file, "image/png");
  };
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  return undefined;
}
