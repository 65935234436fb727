//! Heat maps of fractions: rows by columns, in classes of what is missing from 1.

use super::PlotError;
use super::axis::shortened;
use super::draw::{FAINT, HEIGHT, INK, NOTE_CHARACTERS_MAX, PAPER, TEXT_PX, TITLE_PX, WIDTH, text};
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use std::error::Error;

const TITLE_CHARACTERS_MAX: usize = 80;
const NAME_CHARACTERS_MAX: usize = 10;
/// Names beside the map, and numbers below it.
const NAMES_MAX: usize = 20;
const TICKS: i32 = 6;
/// The map's edges.
const LEFT: i32 = 190;
const RIGHT: i32 = WIDTH - 40;
const TOP: i32 = 150;
const BOTTOM: i32 = HEIGHT - 120;

/// Colours of the classes, light to dark for any eye; the bound is of the missing fraction.
const CLASSES: [(f64, RGBColor, &str); 6] = [
    (0.0, RGBColor(0xd9, 0xec, 0xf7), "all"),
    (1e-3, RGBColor(0xfe, 0xd9, 0x76), "to 0.1 % missing"),
    (1e-2, RGBColor(0xfd, 0x9a, 0x3c), "to 1 %"),
    (1e-1, RGBColor(0xe3, 0x4a, 0x1f), "to 10 %"),
    (0.999_999_999, RGBColor(0x99, 0x0f, 0x26), "above"),
    (f64::INFINITY, RGBColor(0x1a, 0x1a, 0x1a), "none"),
];

/// Fractions from 0 to 1 by row and column.
#[derive(Clone, Debug, PartialEq)]
pub struct HeatMap {
    /// Above it.
    pub title: String,
    /// What the rows are.
    pub y: String,
    /// What the columns are.
    pub x: String,
    /// Names of the rows, from the top.
    pub names: Vec<String>,
    /// Where the first column begins, and the width of each, in the unit of `x`.
    pub columns: (f64, f64),
    /// By row; `None` has no colour.
    pub cells: Vec<Vec<Option<f64>>>,
    /// Below it, one line. May be empty.
    pub note: String,
}

impl HeatMap {
    /// As an SVG document of its own.
    ///
    /// # Errors
    /// It has no cells.
    pub fn svg(&self) -> Result<String, PlotError> {
        if self.width() == 0 {
            let (title, why) = (self.title.clone(), "it has no cells".to_owned());
            return Err(PlotError { title, why });
        }
        self.draw().map_err(|error| PlotError { title: self.title.clone(), why: error.to_string() })
    }

    fn width(&self) -> usize {
        self.cells.iter().map(Vec::len).max().unwrap_or(0)
    }

    fn draw(&self) -> Result<String, Box<dyn Error>> {
        let mut svg = String::new();
        let size = (WIDTH as u32, HEIGHT as u32);
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&PAPER)?;
        let title = shortened(&self.title, TITLE_CHARACTERS_MAX);
        text(&root, &title, (20, 30), TITLE_PX, INK, HPos::Left)?;
        let mut x = 24;
        for (_, colour, name) in CLASSES {
            root.draw(&Rectangle::new([(x, 66), (x + 28, 94)], colour.filled()))?;
            text(&root, name, (x + 38, 80), TEXT_PX - 3, INK, HPos::Left)?;
            x += 66 + name.len() as i32 * 12;
        }
        let (rows, columns) = (self.cells.len() as i32, self.width() as i32);
        let across = |column: i32| LEFT + (RIGHT - LEFT) * column / columns;
        let down = |row: i32| TOP + (BOTTOM - TOP) * row / rows;
        for (row, cells) in (0..).zip(&self.cells) {
            let mut begin = 0;
            // Equal cells in a row are one rectangle.
            for equal in cells.chunk_by(|a, b| class(*a) == class(*b)) {
                let end = begin + equal.len() as i32;
                if let Some(class) = class(equal[0]) {
                    let corners = [(across(begin), down(row)), (across(end), down(row + 1))];
                    root.draw(&Rectangle::new(corners, CLASSES[class].1.filled()))?;
                }
                begin = end;
            }
        }
        let frame = FAINT.stroke_width(2);
        root.draw(&Rectangle::new([(LEFT, TOP), (RIGHT, BOTTOM)], frame))?;
        let step = self.names.len().div_ceil(NAMES_MAX).max(1);
        for (row, name) in self.names.iter().enumerate().step_by(step) {
            let middle = (down(row as i32) + down(row as i32 + 1)) / 2;
            let name = shortened(name, NAME_CHARACTERS_MAX);
            text(&root, &name, (LEFT - 12, middle), TEXT_PX - 2, FAINT, HPos::Right)?;
        }
        let ticks = TICKS.min(columns);
        for tick in 0..=ticks {
            let at = columns * tick / ticks;
            let number = (self.columns.0 + f64::from(at) * self.columns.1).to_string();
            let place = (across(at), BOTTOM + 24);
            text(&root, &number, place, TEXT_PX - 2, FAINT, HPos::Center)?;
        }
        text(&root, &self.y, (20, TOP - 26), TEXT_PX, INK, HPos::Left)?;
        text(&root, &self.x, ((LEFT + RIGHT) / 2, BOTTOM + 58), TEXT_PX, INK, HPos::Center)?;
        let note = shortened(&self.note, NOTE_CHARACTERS_MAX);
        text(&root, &note, (20, HEIGHT - 20), TEXT_PX - 5, FAINT, HPos::Left)?;
        root.present()?;
        drop(root);
        Ok(svg)
    }
}

/// Class of a fraction.
fn class(fraction: Option<f64>) -> Option<usize> {
    let missing = 1.0 - fraction?.clamp(0.0, 1.0);
    CLASSES.iter().position(|(bound, ..)| missing <= *bound)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(cells: Vec<Vec<Option<f64>>>) -> HeatMap {
        HeatMap {
            title: "a < b".to_owned(),
            y: "station".to_owned(),
            x: "window".to_owned(),
            names: (0..cells.len()).map(|row| row.to_string()).collect(),
            columns: (100.0, 4.0),
            cells,
            note: String::new(),
        }
    }

    #[test]
    fn each_fraction_has_the_colour_of_its_class() {
        for (fraction, expected) in
            [(1.0, 0), (0.9995, 1), (0.995, 2), (0.95, 3), (0.5, 4), (0.0, 5), (7.0, 0)]
        {
            assert_eq!(class(Some(fraction)), Some(expected), "{fraction}");
        }
        assert_eq!(class(None), None);
    }

    #[test]
    fn equal_cells_are_one_rectangle_and_unknown_ones_none() {
        let all = Some(1.0);
        let svg = map(vec![vec![all, all, None, Some(0.0)], vec![all; 4]]).svg().unwrap();
        // Paper, a class each, three runs of cells, the frame.
        assert_eq!(svg.matches("<rect").count(), 1 + CLASSES.len() + 3 + 1, "{svg}");
        assert!(svg.contains("a &lt; b") && svg.contains("\n116\n"), "{svg}");
        assert!(map(vec![vec![]]).svg().unwrap_err().to_string().contains("no cells"));
    }
}
