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
        note: "measured, 2026-01-02".to_owned(),
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
fn names_stand_beside_the_data_and_the_note_below_it() {
    let labels = ["one", "two", "three"];
    let svg = plot(&labels).svg().unwrap();
    let polygons = svg.split("<polygon ").skip(1).map(|rest| rest.split("/>").next().unwrap());
    let rightmost = |polygon: &str| {
        let points = polygon.split("points=\"").nth(1).unwrap().split('"').next().unwrap();
        let xs = points.split_whitespace().map(|p| p.split(',').next().unwrap().parse().unwrap());
        xs.fold(0.0, f64::max)
    };
    // Those of the names come last.
    let data = polygons.map(rightmost).collect::<Vec<f64>>();
    let data = data[..data.len() - labels.len()].iter().copied().fold(0.0, f64::max);
    let texts = texts(&svg);
    let find = |text: &str| texts.iter().find(|(.., t)| t == text).unwrap();
    for label in labels {
        assert!(find(label).0 > data + 10.0, "{label}: {:?}, data to {data}", find(label));
    }
    assert!(find("measured, 2026-01-02").1 > find("message").1);
    assert!(!plot(&["a"]).svg().unwrap().contains("<circle"));
}

#[test]
fn a_line_that_ends_early_has_no_leader_across_the_others() {
    let mut early = plot(&["early", "late"]);
    let leaders = |plot: &Plot| plot.svg().unwrap().matches("opacity=\"0.5\"").count();
    assert_eq!(leaders(&early), 2);
    early.lines[0].points.truncate(1);
    assert_eq!(leaders(&early), 1);
}

#[test]
fn thousands_of_points_are_dots() {
    let mut dots = plot(&["packets"]);
    dots.lines[0].marker = Marker::Dot;
    dots.lines[0].style = Style::Points;
    dots.lines[0].points = (0..1000).map(|i| (4096.0 + f64::from(i), 1e9)).collect();
    // One more at the name.
    assert_eq!(dots.svg().unwrap().matches("<circle").count(), 1001);
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
