//! Drawing. Everything is twice as large as it is shown, because places are whole pixels.

use super::axis::shortened;
use super::{COLOURS, Line, Marker, Plot, Style};
use plotters::coord::Shift;
use plotters::element::{DashedPathElement, PathElement};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::collections::BTreeMap;
use std::error::Error;
use std::ops::Range;

pub(super) const WIDTH: i32 = 1240;
pub(super) const HEIGHT: i32 = 800;
pub(super) const TITLE_PX: i32 = 30;
pub(super) const TEXT_PX: i32 = 25;
/// Of an ordinary font, per character; more than most take.
const CHARACTER_PX: i32 = 15;
/// From one name beside the plot to the next.
const NAME_STEP: i32 = 31;
const NAME_CHARACTERS_MAX: usize = 26;
const TITLE_CHARACTERS_MAX: usize = 60;
const NOTE_PX: i32 = 20;
pub(super) const NOTE_CHARACTERS_MAX: usize = 110;

pub(super) const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
pub(super) const FAINT: RGBColor = RGBColor(0x66, 0x66, 0x66);
const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);
pub(super) const PAPER: RGBColor = RGBColor(0xff, 0xff, 0xff);

pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(super) type Outcome<T = ()> = Result<T, Box<dyn Error>>;
pub(super) type Pixel = (i32, i32);

/// Draws `plot` and, on its lines, what `paint` draws; its second argument maps the axes' units to
/// pixels.
pub(super) fn draw(
    plot: &Plot,
    paint: impl Fn(&Area<'_>, &dyn Fn(f64, f64) -> Pixel) -> Outcome,
) -> Outcome<String> {
    let mut svg = String::new();
    {
        let root =
            SVGBackend::with_string(&mut svg, (WIDTH as u32, HEIGHT as u32)).into_drawing_area();
        root.fill(&PAPER)?;
        draw_on(plot, &root, paint)?;
        root.present()?;
    }
    Ok(svg)
}

fn draw_on(
    plot: &Plot,
    root: &Area<'_>,
    paint: impl Fn(&Area<'_>, &dyn Fn(f64, f64) -> Pixel) -> Outcome,
) -> Outcome {
    text(root, &shortened(&plot.title, TITLE_CHARACTERS_MAX), (20, 30), TITLE_PX, INK, HPos::Left)?;
    let has_key = !plot.key.is_empty();
    if has_key {
        draw_key(plot, root)?;
    }
    if !plot.note.is_empty() {
        let note = shortened(&plot.note, NOTE_CHARACTERS_MAX);
        text(root, &note, (20, HEIGHT - 20), NOTE_PX, FAINT, HPos::Left)?;
    }
    let names = names(plot);
    let longest = names.values().map(|name| name.chars().count()).max().unwrap_or(0) as i32;
    let right = if names.is_empty() { 40 } else { 60 + longest * CHARACTER_PX };
    let axis_text = |characters: usize| (characters as i32 * CHARACTER_PX + 64).max(104);
    let mut chart = ChartBuilder::on(root)
        .margin_top(if has_key { 112 } else { 66 })
        .margin_right(right)
        .margin_bottom(if plot.note.is_empty() { 12 } else { 48 })
        .margin_left(8)
        .x_label_area_size(80)
        .y_label_area_size(axis_text(plot.y.widest()))
        .build_cartesian_2d(plot.x.clone(), plot.y.clone())?;
    let style = |px: i32, colour: RGBColor| ("sans-serif", px).into_font().color(&colour);
    chart
        .configure_mesh()
        .x_desc(&plot.x.label)
        .y_desc(&plot.y.label)
        .axis_desc_style(style(TEXT_PX, INK))
        .label_style(style(TEXT_PX - 2, FAINT))
        .axis_style(FAINT.stroke_width(2))
        .bold_line_style(GRID.stroke_width(2))
        .light_line_style(TRANSPARENT)
        .draw()?;
    let place = |&(x, y): &(f64, f64)| chart.plotting_area().map_coordinate(&(x, y));
    let (across, down) = chart.plotting_area().get_pixel_range();
    paint(root, &|x, y| place(&(x, y)))?;
    let places: Vec<Vec<Pixel>> =
        plot.lines.iter().map(|line| line.points.iter().map(place).collect()).collect();
    for (line, places) in plot.lines.iter().zip(&places) {
        stroke(root, line.style, colour(line.series), places)?;
    }
    for kind in [Marker::Dot, Marker::Hollow, Marker::Filled] {
        for (line, places) in plot.lines.iter().zip(&places).filter(|(line, _)| line.marker == kind)
        {
            for place in places {
                mark(root, kind, line.series, colour(line.series), *place)?;
            }
        }
    }
    draw_names(root, plot, &names, &places, &Frame { across, down })
}

pub(super) fn colour(series: usize) -> RGBColor {
    let (red, green, blue) = COLOURS[series % COLOURS.len()];
    RGBColor(red, green, blue)
}

pub(super) fn text(
    root: &Area<'_>,
    text: &str,
    at: Pixel,
    px: i32,
    colour: RGBColor,
    side: HPos,
) -> Outcome {
    let style = ("sans-serif", px).into_font().color(&colour).pos(Pos::new(side, VPos::Center));
    root.draw(&Text::new(text.to_owned(), at, style))?;
    Ok(())
}

/// What kinds of line mean, in one row above the data.
fn draw_key(plot: &Plot, root: &Area<'_>) -> Outcome {
    let series = plot.lines.iter().map(|line| line.series);
    // Where there is one series, its colour; where there are several, none of theirs.
    let only = series.clone().min().filter(|least| series.clone().all(|one| one == *least));
    let mut x = 24;
    for (style, marker, name) in &plot.key {
        let (ink, shape) = only.map_or((FAINT, 0), |series| (colour(series), series));
        stroke(root, *style, ink, &[(x, 76), (x + 56, 76)])?;
        if *marker != Marker::None {
            mark(root, *marker, shape, ink, (x + 28, 76))?;
        }
        text(root, name, (x + 68, 76), TEXT_PX, INK, HPos::Left)?;
        x += 68 + (name.chars().count() as i32 + 2) * CHARACTER_PX;
    }
    Ok(())
}

/// Names of series, when there is more than one to tell apart.
fn names(plot: &Plot) -> BTreeMap<usize, String> {
    let mut names = BTreeMap::new();
    for line in plot.lines.iter().filter(|line| !line.points.is_empty() && !line.label.is_empty()) {
        names.entry(line.series).or_insert_with(|| shortened(&line.label, NAME_CHARACTERS_MAX));
    }
    names
}

/// Pixels that the data may take.
struct Frame {
    across: Range<i32>,
    down: Range<i32>,
}

impl Frame {
    /// Where a leader from a line's end may begin: further left it would cross other lines.
    fn leads_from(&self) -> i32 {
        self.across.start + (self.across.end - self.across.start) * 3 / 4
    }
}

/// Names beside the ends of lines, moved apart where they would overlap, each with a thin line to
/// its end if that is close.
fn draw_names(
    root: &Area<'_>,
    plot: &Plot,
    names: &BTreeMap<usize, String>,
    places: &[Vec<Pixel>],
    frame: &Frame,
) -> Outcome {
    let right = WIDTH
        - names.values().map(|name| name.chars().count()).max().unwrap_or(0) as i32 * CHARACTER_PX
        - 22;
    let mut ends: Vec<(i32, Pixel, usize)> = Vec::new();
    for series in names.keys() {
        let lines = plot.lines.iter().zip(places).filter(|(line, _)| line.series == *series);
        let end = lines.flat_map(|(_, places)| places.iter().copied()).max_by_key(|(x, _)| *x);
        if let Some(end) = end {
            ends.push((end.1, end, *series));
        }
    }
    ends.sort_by_key(|(y, ..)| *y);
    let mut least = frame.down.start;
    for (y, ..) in &mut ends {
        *y = (*y).max(least);
        least = *y + NAME_STEP;
    }
    let mut most = frame.down.end;
    for (y, ..) in ends.iter_mut().rev() {
        *y = (*y).min(most);
        most = *y - NAME_STEP;
    }
    for (y, end, series) in ends {
        let ink = colour(series);
        let leader = [(end.0 + 14, end.1), (right - 26, y)];
        // Points have no end that a leader could name.
        let is_line = plot.lines.iter().any(|l| l.series == series && l.style != Style::Points);
        if is_line && (frame.leads_from()..leader[1].0).contains(&leader[0].0) {
            root.draw(&PathElement::new(leader.to_vec(), ink.mix(0.5).stroke_width(1)))?;
        }
        let is_dots = |line: &&Line| line.series == series && line.marker == Marker::Dot;
        if plot.lines.iter().any(|line| is_dots(&line)) {
            root.draw(&Circle::new((right - 14, y), 6, ink.filled()))?;
        } else {
            mark(root, Marker::Filled, series, ink, (right - 14, y))?;
        }
        text(root, &names[&series], (right + 2, y), TEXT_PX, ink, HPos::Left)?;
    }
    Ok(())
}

fn stroke(root: &Area<'_>, style: Style, colour: RGBColor, places: &[Pixel]) -> Outcome {
    if places.len() < 2 {
        return Ok(());
    }
    let dashes = |size, gap, width| {
        DashedPathElement::new(places.to_vec(), size, gap, colour.stroke_width(width))
    };
    match style {
        Style::Points => {}
        Style::Solid => root.draw(&PathElement::new(places.to_vec(), colour.stroke_width(3)))?,
        Style::Dashed => root.draw(&dashes(14, 9, 3))?,
        Style::Dotted => root.draw(&dashes(3, 6, 3))?,
    }
    Ok(())
}

/// One of seven shapes around `at`.
pub(super) fn mark(
    root: &Area<'_>,
    marker: Marker,
    series: usize,
    colour: RGBColor,
    at: Pixel,
) -> Outcome {
    if marker == Marker::Dot {
        root.draw(&Circle::new(at, 3, colour.filled()))?;
        return Ok(());
    }
    let radius = if marker == Marker::Hollow { 10.0 } else { 6.0 };
    let mut corners = shape(series % 7, radius, at);
    let fill = if marker == Marker::Hollow { PAPER } else { colour };
    root.draw(&Polygon::new(corners.clone(), fill.filled()))?;
    if marker == Marker::Hollow {
        corners.push(corners[0]);
        root.draw(&PathElement::new(corners, colour.stroke_width(3)))?;
    }
    Ok(())
}

fn shape(which: usize, radius: f64, at: Pixel) -> Vec<Pixel> {
    let corner = |angle: f64, size: f64| {
        let (sin, cos) = angle.to_radians().sin_cos();
        (at.0 + (cos * radius * size).round() as i32, at.1 + (sin * radius * size).round() as i32)
    };
    let regular = |corners: i32, first: f64, size: f64| {
        (0..corners)
            .map(|i| corner(first + f64::from(i) * 360.0 / f64::from(corners), size))
            .collect()
    };
    match which {
        0 => regular(12, 0.0, 1.0),
        1 => regular(4, 45.0, 1.25),
        2 => regular(3, -90.0, 1.3),
        3 => regular(4, 0.0, 1.3),
        4 => regular(3, 90.0, 1.3),
        5 => (0..10)
            .map(|i| corner(f64::from(i) * 36.0 - 90.0, if i % 2 == 0 { 1.4 } else { 0.6 }))
            .collect(),
        _ => regular(6, 0.0, 1.15),
    }
}
