//! Tests of SVG plots: escaping, placement of labels, determinism.

use super::*;

fn plot(labels: &[&str]) -> Plot {
    let line = |(series, label): (usize, &&str)| Line {
        label: (*label).to_owned(),
        series,
        style: Style::Solid,
        marker: Marker::Filled,
        points: vec![(4096.0, 1e9), (1e6, 90e9 + series as f64)],
    };
    Plot {
        title: "a < b & \"c\"".to_owned(),
        x: PlotAxis::of("message_bytes", "message", [4096.0, 1e6], None),
        y: PlotAxis::of("goodput_bps", "goodput", [1e9, 90e9], None),
        lines: labels.iter().enumerate().map(line).collect(),
        key: vec![(Style::Solid, Marker::Filled, "simulated".to_owned())],
    }
}

/// Text elements of `svg` with their baselines.
fn texts(svg: &str) -> Vec<(f64, f64, String)> {
    let parts = svg.split("<text ").skip(1);
    let attribute = |part: &str, name: &str| -> f64 {
        let start = part.find(&format!("{name}=\"")).unwrap() + name.len() + 2;
        part[start..].split('"').next().unwrap().parse().unwrap()
    };
    let text = |part: &str| {
        let inner = part.split_once('>').unwrap().1.split_once("</text>").unwrap().0;
        (attribute(part, "x"), attribute(part, "y"), inner.trim().to_owned())
    };
    parts.map(text).collect()
}

#[test]
fn text_is_escaped() {
    let svg = plot(&["<script>alert(1)</script>"]).svg().unwrap();
    assert!(svg.contains("a &lt; b &amp; &quot;c&quot;"), "{svg}");
    assert!(!svg.contains("<script"), "{svg}");
}

#[test]
fn names_of_lines_that_end_together_do_not_overlap_and_stay_inside() {
    let labels = ["one", "two", "three", "four", "five", "six", "seven"];
    let svg = plot(&labels).svg().unwrap();
    let mut places: Vec<(f64, f64)> = texts(&svg)
        .into_iter()
        .filter(|(.., text)| labels.contains(&text.as_str()))
        .map(|(x, y, _)| (x, y))
        .collect();
    assert_eq!(places.len(), 7);
    places.sort_by(|a, b| a.1.total_cmp(&b.1));
    assert!(places.windows(2).all(|pair| pair[1].1 - pair[0].1 >= 27.0), "{places:?}");
    assert!(places.iter().all(|(x, y)| *x < 1240.0 && (0.0..800.0).contains(y)), "{places:?}");
}

#[test]
fn the_same_plot_gives_the_same_bytes() {
    assert_eq!(plot(&["a", "b"]).svg().unwrap(), plot(&["a", "b"]).svg().unwrap());
}

#[test]
fn a_plot_without_points_is_an_error() {
    let empty = Plot { lines: Vec::new(), ..plot(&[]) };
    assert_eq!(
        empty.svg().unwrap_err().to_string(),
        "cannot draw \"a < b & \\\"c\\\"\": it has no points"
    );
}
