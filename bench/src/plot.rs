//! Plots as SVG.
//!
//! Made to be read on paper too: series differ by colour and by marker, sources by the kind of
//! line. Names stand beside the lines' ends, outside of the data. No system font is asked for its
//! metrics, so the same data give the same bytes everywhere.

mod axis;
mod boxes;
mod draw;
mod heat;

pub use axis::{PlotAxis, Scale};
pub(crate) use boxes::{BoxPlot, PlotBox};
pub use heat::{Columns, HeatMap, Shades};

use thiserror::Error;

/// Colours of series, told apart by people who see colours differently (Okabe and Ito, 2008; two
/// darkened for thin lines on white).
pub(crate) const COLOURS: [(u8, u8, u8); 7] = [
    (0x00, 0x72, 0xb2),
    (0xd5, 0x5e, 0x00),
    (0x00, 0x9e, 0x73),
    (0xb8, 0x57, 0x8e),
    (0xc8, 0x8a, 0x00),
    (0x3a, 0x98, 0xd0),
    (0x55, 0x55, 0x55),
];

/// Kind of line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Continuous.
    Solid,
    /// Long dashes.
    Dashed,
    /// Dots.
    Dotted,
    /// No line.
    Points,
}

/// Whether points are marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    /// They are not.
    None,
    /// By a large hollow shape.
    Hollow,
    /// By a small filled shape.
    Filled,
    /// By a dot, where there are thousands.
    Dot,
}

/// One line of a plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Name beside its end. Lines of one series have one name, which stands there once.
    pub label: String,
    /// Which colour and shape, from 0; they repeat after seven.
    pub series: usize,
    /// Kind of line.
    pub style: Style,
    /// Whether points are marked.
    pub marker: Marker,
    /// Points, in the order in which the line goes through them; in the axes' own units.
    pub points: Vec<(f64, f64)>,
}

/// A plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// Above it.
    pub title: String,
    /// Along the bottom.
    pub x: PlotAxis,
    /// Up the left side.
    pub y: PlotAxis,
    /// Lines.
    pub lines: Vec<Line>,
    /// What kinds of line and marker mean, shown above the data.
    pub key: Vec<(Style, Marker, String)>,
    /// Below the axis, one line: what made the figures, and when. May be empty.
    pub note: String,
}

/// A plot could not be drawn.
#[derive(Debug, Error)]
#[error("cannot draw {title:?}: {why}")]
pub struct PlotError {
    title: String,
    why: String,
}

impl Plot {
    /// As an SVG document of its own.
    ///
    /// # Errors
    /// There is no point to draw.
    pub fn svg(&self) -> Result<String, PlotError> {
        let error = |why: String| PlotError { title: self.title.clone(), why };
        if self.lines.iter().all(|line| line.points.is_empty()) {
            return Err(error("it has no points".to_owned()));
        }
        draw::draw(self, |_, _| Ok(())).map_err(|e| error(e.to_string()))
    }
}

#[cfg(test)]
mod tests;
