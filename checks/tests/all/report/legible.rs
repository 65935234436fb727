//! Reports of campaigns on wide and narrow screens, light and dark: nothing is cut off, and text
//! has a size and a contrast at which it can be read.

use super::{Probe, Scratch, WIDTH, has_browser, probe_with, sample};
use longhaul_bench::Report;
use serde::Deserialize;

/// Widths of a desktop and of a phone, in CSS pixels.
const WIDTHS: [u32; 2] = [1200, 400];
/// Smallest text, in CSS pixels.
const TEXT_PX_MIN: f64 = 8.0;
/// Contrast of text with its background: WCAG 2.1's for ordinary text, and in pictures, whose names
/// have the colours of their lines, that for graphics, less the yellow of a line on white.
const CONTRAST_MIN: f64 = 4.5;
const CONTRAST_IN_PICTURES_MIN: f64 = 2.9;

/// Runs in the page before the common probe, and adds what text looks like.
const LOOK: &str = r#"<script>
const channels = colour => (colour.match(/[\d.]+/g) || []).map(Number);
const luminance = colour => {
  const [r, g, b] = channels(colour).slice(0, 3).map(c => {
    c /= 255;
    return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const contrast = (a, b) => {
  const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
  return (high + 0.05) / (low + 0.05);
};
const isOpaque = colour => channels(colour).length === 3 || channels(colour)[3] > 0.99;
const background = element => {
  for (let e = element; e; e = e.parentElement) {
    const colour = getComputedStyle(e).backgroundColor;
    if (isOpaque(colour)) return colour;
  }
  return 'rgb(255, 255, 255)';
};
const least = { text_px: Infinity, contrast: Infinity, picture_contrast: Infinity,
                texts: 0, of: ['', '', ''] };
const note = (key, at, value, what) => {
  if (value < least[key]) { least[key] = value; least.of[at] = what; }
};
for (const e of document.querySelectorAll('body *:not(script):not(style)')) {
  if (e.closest('svg')) continue;
  const own = [...e.childNodes].filter(n => n.nodeType === 3)
    .map(n => n.textContent.trim()).join('');
  if (!own || !e.getClientRects().length) continue;
  const style = getComputedStyle(e);
  least.texts += 1;
  note('text_px', 0, parseFloat(style.fontSize), own);
  note('contrast', 1, contrast(style.color, background(e)), own);
}
for (const svg of document.querySelectorAll('svg')) {
  const rects = [...svg.querySelectorAll('rect')].map(r =>
    ({ box: r.getBoundingClientRect(), fill: getComputedStyle(r).fill }));
  for (const text of svg.querySelectorAll('text')) {
    if (!text.textContent.trim()) continue;
    const own = text.getBoundingClientRect();
    const [x, y] = [own.left + own.width / 2, own.top + own.height / 2];
    const below = rects.filter(({ box, fill }) => fill !== 'none' &&
      box.left <= x && x <= box.right && box.top <= y && y <= box.bottom);
    const style = getComputedStyle(text);
    least.texts += 1;
    // Names of axes are turned.
    const { a, b } = text.getScreenCTM();
    note('text_px', 0, parseFloat(style.fontSize) * Math.hypot(a, b), text.textContent.trim());
    note('picture_contrast', 2, contrast(style.fill, below.at(-1).fill), text.textContent.trim());
  }
}
const look = { ...least, is_dark: matchMedia('(prefers-color-scheme: dark)').matches };
</script>"#;

#[derive(Debug, Deserialize)]
struct Look {
    is_dark: bool,
    texts: usize,
    text_px: f64,
    contrast: f64,
    picture_contrast: f64,
    /// Texts with the least of each.
    of: Vec<String>,
}

fn look(probe: &Probe) -> Look {
    let look = probe.look.clone().unwrap_or_else(|| panic!("no look: {probe:?}"));
    serde_json::from_value(look).expect("a look")
}

fn report() -> Report {
    let (mut experiments, mut records) = sample::campaign();
    let (others, of_others) = sample::results();
    experiments.extend(others);
    records.extend(of_others);
    experiments.iter().fold(Report::new("A campaign"), |r, e| r.experiment(e, &records))
}

#[test]
fn a_campaign_is_legible_on_any_screen() {
    if !has_browser() {
        return;
    }
    let scratch = Scratch::new("report-legible");
    let html = report().html().expect("a report");
    for width in WIDTHS {
        for is_dark in [false, true] {
            let (probe, console) = probe_with(&scratch, &html, width, is_dark, LOOK);
            assert_eq!(console, [""; 0], "the console");
            assert!(
                probe.scroll_width <= width,
                "{} of {width}: {:?}",
                probe.scroll_width,
                probe.wide
            );
            assert_eq!((probe.inner_width, probe.sections), (width, 8));
            for svg in &probe.svgs {
                assert!(svg.outside.is_empty() && svg.overlaps.is_empty(), "{width}: {svg:?}");
            }
            let titles: Vec<&str> = probe.svgs.iter().map(|svg| svg.label.as_str()).collect();
            for part in [
                "goodput, measured: spread",
                "goodput, measured: distribution, none, 100 km",
                "goodput, measured, both (Gbit/s)",
                "latency, measured: distribution, both, 1000 km",
            ] {
                assert!(titles.contains(&&*format!("Plot: {part}")), "{part}: {titles:?}");
            }
            let look = look(&probe);
            assert_eq!(look.is_dark, is_dark, "{width}");
            assert!(look.texts > 500 && look.text_px >= TEXT_PX_MIN, "{width}, {look:?}");
            assert!(look.contrast >= CONTRAST_MIN, "{width}, {look:?}");
            assert!(look.picture_contrast >= CONTRAST_IN_PICTURES_MIN, "{width}, {look:?}");
        }
    }
}

#[test]
fn the_look_sees_small_and_faint_text() {
    if !has_browser() {
        return;
    }
    let scratch = Scratch::new("report-illegible");
    let wrong = "<!DOCTYPE html><body><main><p style='font-size:6px'>small</p>\
                 <p style='color:#bbb;background:#fff'>faint</p>\
                 <svg width='100' height='50' viewBox='0 0 200 100'>\
                 <rect width='200' height='100' fill='#eeeeee'/>\
                 <text x='10' y='50' font-size='30' fill='#dddddd'>pale</text></svg>\
                 </main></body>";
    let (probe, _) = probe_with(&scratch, wrong, WIDTH, false, LOOK);
    let look = look(&probe);
    assert_eq!((look.text_px, look.texts), (6.0, 3), "{look:?}");
    assert!(look.contrast < 2.0 && look.picture_contrast < 1.3, "{look:?}");
    assert_eq!(look.of, ["small", "faint", "pale"]);
}
