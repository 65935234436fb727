//! Heat maps: rows by columns, in classes of what is missing from 1 or in shades of figures.

use super::PlotError;
use super::axis::{LOG_FROM, shortened};
use super::draw::{
    Area, FAINT, HEIGHT, INK, NOTE_CHARACTERS_MAX, Outcome, PAPER, TEXT_PX, TITLE_PX, WIDTH, text,
};
use crate::quantity::Quantity;
use crate::table::Format;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

const TITLE_CHARACTERS_MAX: usize = 80;
const NAME_CHARACTERS_MAX: usize = 10;
const AXIS_CHARACTERS_MAX: usize = 50;
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

/// Shades of figures, from the least to the most: light to dark.
const RAMP: [(u8, u8, u8); 3] = [(0xe9, 0xf3, 0xfb), (0x4a, 0x9c, 0xd3), (0x08, 0x2f, 0x5f)];
/// Figures of the ramp that its legend shows.
const RAMP_STEPS: u8 = 5;
/// Text in cells, which has the same colour on any page as the cells have.
const ON_LIGHT: RGBColor = RGBColor(0x10, 0x14, 0x18);
const ON_DARK: RGBColor = RGBColor(0xfa, 0xfb, 0xfc);
/// Of a figure in a cell, per character.
const FIGURE_PX: i32 = 13;

/// What the columns of a heat map are.
#[derive(Clone, Debug, PartialEq)]
pub enum Columns {
    /// Where the first begins, and the width of each, in the unit of the x axis.
    Even {
        /// Beginning of the first.
        first: f64,
        /// Width of each.
        width: f64,
    },
    /// Names, from the left.
    Named(Vec<String>),
}

/// What the colours of a heat map stand for.
#[derive(Clone, Debug, PartialEq)]
pub enum Shades {
    /// Classes of what is missing from 1, of fractions.
    Missing,
    /// Figures of what this key names ([`Quantity::of`]), which cells with room for them show.
    Figures(String),
}

/// Figures by row and column.
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
    /// What the columns are.
    pub columns: Columns,
    /// What the colours stand for.
    pub shades: Shades,
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

    fn draw(&self) -> Outcome<String> {
        let mut svg = String::new();
        let size = (WIDTH as u32, HEIGHT as u32);
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&PAPER)?;
        let title = shortened(&self.title, TITLE_CHARACTERS_MAX);
        text(&root, &title, (20, 30), TITLE_PX, INK, HPos::Left)?;
        let (rows, columns) = (self.cells.len() as i32, self.width() as i32);
        let grid = Grid { rows, columns };
        match &self.shades {
            Shades::Missing => self.draw_classes(&root, &grid)?,
            Shades::Figures(key) => self.draw_figures(&root, &grid, key)?,
        }
        let frame = FAINT.stroke_width(2);
        root.draw(&Rectangle::new([(LEFT, TOP), (RIGHT, BOTTOM)], frame))?;
        let step = self.names.len().div_ceil(NAMES_MAX).max(1);
        for (row, name) in self.names.iter().enumerate().step_by(step) {
            let name = shortened(name, NAME_CHARACTERS_MAX);
            let place = (LEFT - 12, grid.middle(row as i32, 0).1);
            text(&root, &name, place, TEXT_PX - 2, FAINT, HPos::Right)?;
        }
        self.draw_columns(&root, &grid)?;
        let (x, y) =
            (shortened(&self.x, AXIS_CHARACTERS_MAX), shortened(&self.y, AXIS_CHARACTERS_MAX));
        text(&root, &y, (20, TOP - 26), TEXT_PX, INK, HPos::Left)?;
        text(&root, &x, ((LEFT + RIGHT) / 2, BOTTOM + 58), TEXT_PX, INK, HPos::Center)?;
        let note = shortened(&self.note, NOTE_CHARACTERS_MAX);
        text(&root, &note, (20, HEIGHT - 20), TEXT_PX - 5, FAINT, HPos::Left)?;
        root.present()?;
        drop(root);
        Ok(svg)
    }

    fn draw_classes(&self, root: &Area<'_>, grid: &Grid) -> Outcome {
        let legend = CLASSES.iter().map(|(_, colour, name)| (*colour, (*name).to_owned()));
        draw_legend(root, legend)?;
        for (row, cells) in (0..).zip(&self.cells) {
            let mut begin = 0;
            // Equal cells in a row are one rectangle.
            for equal in cells.chunk_by(|a, b| class(*a) == class(*b)) {
                let end = begin + equal.len() as i32;
                if let Some(class) = class(equal[0]) {
                    let corners = grid.corners(row, begin, end);
                    root.draw(&Rectangle::new(corners, CLASSES[class].1.filled()))?;
                }
                begin = end;
            }
        }
        Ok(())
    }

    fn draw_figures(&self, root: &Area<'_>, grid: &Grid, key: &str) -> Outcome {
        let figures = || self.cells.iter().flatten().copied().flatten();
        let ramp = Ramp::over(figures());
        let format = Format::of(&Quantity::of(key), figures());
        let steps = (0..RAMP_STEPS).map(|step| {
            let share = f64::from(step) / f64::from(RAMP_STEPS - 1);
            (ramp.colour(share), format.text(ramp.figure(share)))
        });
        draw_legend(root, steps)?;
        let longest = figures().map(|figure| format.text(figure).chars().count()).max();
        let has_room = longest.unwrap_or(0) as i32 * FIGURE_PX < (RIGHT - LEFT) / grid.columns
            && (BOTTOM - TOP) / grid.rows > TEXT_PX;
        for (row, cells) in (0..).zip(&self.cells) {
            for (column, cell) in (0..).zip(cells) {
                let Some(figure) = *cell else { continue };
                let colour = ramp.colour(ramp.share(figure));
                let corners = grid.corners(row, column, column + 1);
                root.draw(&Rectangle::new(corners, colour.filled()))?;
                if has_room {
                    let (shown, at) = (format.text(figure), grid.middle(row, column));
                    text(root, &shown, at, TEXT_PX - 2, ink_on(colour), HPos::Center)?;
                }
            }
        }
        Ok(())
    }

    fn draw_columns(&self, root: &Area<'_>, grid: &Grid) -> Outcome {
        match &self.columns {
            Columns::Even { first, width } => {
                let ticks = TICKS.min(grid.columns);
                for tick in 0..=ticks {
                    let at = grid.columns * tick / ticks;
                    let number = (first + f64::from(at) * width).to_string();
                    let place = (grid.across(at), BOTTOM + 24);
                    text(root, &number, place, TEXT_PX - 2, FAINT, HPos::Center)?;
                }
            }
            Columns::Named(names) => {
                let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
                let needed = (longest.min(NAME_CHARACTERS_MAX) + 1) as i32 * FIGURE_PX;
                let step = (needed * grid.columns / (RIGHT - LEFT) + 1) as usize;
                for (column, name) in names.iter().enumerate().step_by(step) {
                    let name = shortened(name, NAME_CHARACTERS_MAX);
                    let place = (grid.middle(0, column as i32).0, BOTTOM + 24);
                    text(root, &name, place, TEXT_PX - 2, FAINT, HPos::Center)?;
                }
            }
        }
        Ok(())
    }
}

/// Where cells lie.
struct Grid {
    rows: i32,
    columns: i32,
}

impl Grid {
    fn across(&self, column: i32) -> i32 {
        LEFT + (RIGHT - LEFT) * column / self.columns
    }

    fn down(&self, row: i32) -> i32 {
        TOP + (BOTTOM - TOP) * row / self.rows
    }

    fn corners(&self, row: i32, begin: i32, end: i32) -> [(i32, i32); 2] {
        [(self.across(begin), self.down(row)), (self.across(end), self.down(row + 1))]
    }

    fn middle(&self, row: i32, column: i32) -> (i32, i32) {
        let [from, to] = self.corners(row, column, column + 1);
        ((from.0 + to.0) / 2, (from.1 + to.1) / 2)
    }
}

fn draw_legend(root: &Area<'_>, parts: impl Iterator<Item = (RGBColor, String)>) -> Outcome {
    let mut x = 24;
    for (colour, name) in parts {
        root.draw(&Rectangle::new([(x, 66), (x + 28, 94)], colour.filled()))?;
        text(root, &name, (x + 38, 80), TEXT_PX - 2, INK, HPos::Left)?;
        x += 66 + name.chars().count() as i32 * 12;
    }
    Ok(())
}

/// Shades between the least and the most of figures.
struct Ramp {
    least: f64,
    most: f64,
    /// Equal steps of shade are equal ratios.
    is_log: bool,
}

impl Ramp {
    fn over(figures: impl Iterator<Item = f64>) -> Self {
        let (least, most) = figures.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), figure| {
            (a.min(figure), b.max(figure))
        });
        Ramp { least, most, is_log: least > 0.0 && most / least >= LOG_FROM }
    }

    /// Place of a figure between 0 and 1.
    fn share(&self, figure: f64) -> f64 {
        match self.is_log {
            _ if self.most <= self.least => 1.0,
            true => (figure / self.least).ln() / (self.most / self.least).ln(),
            false => (figure - self.least) / (self.most - self.least),
        }
    }

    /// The figure at a place between 0 and 1.
    fn figure(&self, share: f64) -> f64 {
        match self.is_log {
            true => self.least * (self.most / self.least).powf(share),
            false => self.least + (self.most - self.least) * share,
        }
    }

    fn colour(&self, share: f64) -> RGBColor {
        let place = share.clamp(0.0, 1.0) * (RAMP.len() - 1) as f64;
        let (below, above) = (RAMP[place.floor() as usize], RAMP[place.ceil() as usize]);
        let mixed = |from: u8, to: u8| {
            (f64::from(from) + (f64::from(to) - f64::from(from)) * place.fract()).round() as u8
        };
        RGBColor(mixed(below.0, above.0), mixed(below.1, above.1), mixed(below.2, above.2))
    }
}

/// Colour of text on `colour`.
fn ink_on(colour: RGBColor) -> RGBColor {
    let RGBColor(red, green, blue) = colour;
    // Rec. 601 luma.
    let luma = 299 * u32::from(red) + 587 * u32::from(green) + 114 * u32::from(blue);
    if luma > 118_000 { ON_LIGHT } else { ON_DARK }
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
            columns: Columns::Even { first: 100.0, width: 4.0 },
            shades: Shades::Missing,
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

    #[test]
    fn figures_have_shades_and_are_shown_where_they_have_room() {
        let cells = vec![vec![Some(1e9), Some(10e9), None], vec![Some(50e9), Some(100e9), None]];
        let names = ["4 KiB", "64 KiB", "1 MiB"].map(str::to_owned).to_vec();
        let figures = HeatMap {
            columns: Columns::Named(names),
            shades: Shades::Figures("goodput_bps".to_owned()),
            ..map(cells)
        };
        let svg = figures.svg().unwrap();
        // Paper, the legend, four cells, the frame.
        assert_eq!(svg.matches("<rect").count(), 1 + usize::from(RAMP_STEPS) + 4 + 1, "{svg}");
        for text in ["1", "100", "32", "64 KiB"] {
            assert!(svg.contains(&format!(">\n{text}\n<")), "{text}: {svg}");
        }
        let (least, most) = ("#E9F3FB", "#082F5F");
        assert_eq!([least, most].map(|shade| svg.matches(shade).count()), [2, 2]);
        let many = HeatMap { cells: vec![vec![Some(123e9); 40]], ..figures };
        assert_eq!(many.svg().unwrap().matches(">\n123\n<").count(), usize::from(RAMP_STEPS));
    }

    #[test]
    fn shades_are_even_in_ratios_over_decades_and_in_steps_otherwise() {
        let decades = Ramp::over([1.0, 100.0].into_iter());
        assert!(
            (decades.share(10.0) - 0.5).abs() < 1e-9 && (decades.figure(0.5) - 10.0).abs() < 1e-9
        );
        let near = Ramp::over([1.0, 3.0].into_iter());
        assert_eq!((near.share(2.0), near.figure(0.5)), (0.5, 2.0));
        assert_eq!(Ramp::over([0.0, 0.0].into_iter()).share(0.0), 1.0);
    }
}
