//! Box plots: quartiles, whiskers of 1.5 interquartile ranges, and what lies beyond.

use super::draw::{Outcome, PAPER, colour, mark};
use super::{Marker, Plot, PlotError, draw};
use crate::samples::Samples;
use plotters::element::PathElement;
use plotters::prelude::*;

/// Width of a box, in pixels of the drawing.
const WIDTH_MAX: f64 = 64.0;
/// Boxes of a place, as a share of the space between places.
const SHARE: f64 = 0.8;
/// Outliers of more figures are dots.
const MARKED_MAX: usize = 100;

/// A plot with a box for each place and series. Its lines name the series and draw nothing.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BoxPlot {
    /// Frame; its x axis has a place for each name.
    pub plot: Plot,
    /// Number of series beside each other.
    pub series: usize,
    pub boxes: Vec<PlotBox>,
}

/// The figures of one series at one place. A few are drawn one by one, because they have no
/// quartiles worth the name.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlotBox {
    pub place: usize,
    pub series: usize,
    pub samples: Samples,
}

impl BoxPlot {
    /// As an SVG document of its own.
    pub fn svg(&self) -> Result<String, PlotError> {
        let paint = |root: &draw::Area<'_>, pixel: &dyn Fn(f64, f64) -> draw::Pixel| {
            self.boxes.iter().try_for_each(|one| self.paint(root, pixel, one))
        };
        draw::draw(&self.plot, paint)
            .map_err(|error| PlotError { title: self.plot.title.clone(), why: error.to_string() })
    }

    fn paint(
        &self,
        root: &draw::Area<'_>,
        pixel: &dyn Fn(f64, f64) -> draw::Pixel,
        one: &PlotBox,
    ) -> Outcome {
        let place = one.place as f64;
        let step = f64::from(pixel(place + 0.5, 0.0).0 - pixel(place - 0.5, 0.0).0) * SHARE;
        let slot = step / self.series.max(1) as f64;
        let width = (slot * 0.75).clamp(4.0, WIDTH_MAX);
        let offset = (one.series as f64 + 0.5) * slot - step / 2.0;
        let at = |figure: f64, side: f64| {
            let (x, y) = pixel(place, figure);
            (x + (offset + side * width / 2.0).round() as i32, y)
        };
        let ink = colour(one.series);
        let marker = if one.samples.n() > MARKED_MAX { Marker::Dot } else { Marker::Filled };
        let dot = |&figure: &f64| mark(root, marker, one.series, ink, at(figure, 0.0));
        if one.samples.is_few() {
            return one.samples.figures().iter().try_for_each(dot);
        }
        let five = one.samples.five_figures();
        let line = |from, to, width| PathElement::new(vec![from, to], ink.stroke_width(width));
        for (quartile, end) in [(five.q1, five.low), (five.q3, five.high)] {
            root.draw(&line(at(quartile, 0.0), at(end, 0.0), 2))?;
            root.draw(&line(at(end, -0.5), at(end, 0.5), 2))?;
        }
        root.draw(&Rectangle::new([at(five.q3, -1.0), at(five.q1, 1.0)], PAPER.filled()))?;
        let corners = [(five.q1, -1.0), (five.q1, 1.0), (five.q3, 1.0), (five.q3, -1.0)];
        let outline = corners.iter().chain(&corners[..1]).map(|(figure, side)| at(*figure, *side));
        root.draw(&PathElement::new(outline.collect::<Vec<_>>(), ink.stroke_width(3)))?;
        root.draw(&line(at(five.median, -1.0), at(five.median, 1.0), 5))?;
        five.outliers.iter().try_for_each(dot)
    }
}
