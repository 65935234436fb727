//! The points of a sweep.

use crate::problem::Problem;
use crate::sim::{Failure, Opened, point};
use longhaul_bench::Point as Place;
use longhaul_sim::file::{Axis, FileError, Loaded, Parameter, ScenarioFile};
use std::collections::BTreeSet;

/// The product of all axes and repetitions.
pub struct Grid {
    /// Key and values of each axis.
    axes: Vec<(String, Vec<String>)>,
    repeat: u64,
}

/// A point: its number in the grid, its parameters, and its seed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Point {
    /// Parameters.
    pub place: Place,
    /// Seed of its run.
    pub seed: u64,
    index: u64,
}

impl Grid {
    /// The grid of these axes.
    pub fn new(
        opened: &Opened,
        vary: &[String],
        repeat: u32,
        max_points: u64,
    ) -> Result<Self, Failure> {
        let mut axes: Vec<Axis> = Vec::new();
        for text in vary {
            let axis = Axis::parse(&opened.file, text)
                .map_err(|e| Failure::value(format!("--vary {e}")))?;
            if axes.iter().any(|known| known.path() == axis.path()) {
                let cause = format!("--vary {} is given twice: combine its values", axis.path());
                return Err(Failure::value(cause));
            }
            axes.push(axis);
        }
        let count = axes.iter().map(Axis::count).fold(u128::from(repeat), u128::saturating_mul);
        if count > u128::from(max_points) {
            let cause = format!("{count} points are more than {max_points}");
            let cure = "use fewer values or longer steps, or raise --max-points";
            return Err(Failure::Value(Problem::new(cause, cure)));
        }
        let axes = axes.iter().map(|axis| (axis.path().to_owned(), axis.values())).collect();
        Ok(Grid { axes, repeat: repeat.into() })
    }

    /// Returns all distinct points. Builds each scenario, so that errors are found before the sweep
    /// starts.
    pub fn points(&self, opened: &Opened) -> Result<Vec<Point>, Failure> {
        let count: u64 = self.axes.iter().map(|(_, values)| values.len() as u64).product::<u64>();
        let mut points = Vec::new();
        let mut seen = BTreeSet::new();
        for index in 0..count {
            let (loaded, parameters) = self.load_place(opened, index).map_err(Failure::value)?;
            let place = point(&parameters);
            if !seen.insert(place.clone()) {
                continue;
            }
            for run in 0..self.repeat {
                let seed = loaded.scenario.seed.wrapping_add(run);
                points.push(Point { place: place.clone(), seed, index });
            }
        }
        Ok(points)
    }

    /// Builds a point's scenario, and returns its parameters.
    pub fn load(
        &self,
        opened: &Opened,
        point: &Point,
    ) -> Result<(Loaded, Vec<Parameter>), FileError> {
        let (mut loaded, parameters) = self.load_place(opened, point.index)?;
        loaded.scenario.seed = point.seed;
        Ok((loaded, parameters))
    }

    fn load_place(
        &self,
        opened: &Opened,
        index: u64,
    ) -> Result<(Loaded, Vec<Parameter>), FileError> {
        let mut file: ScenarioFile = opened.file.clone();
        let mut parameters = opened.parameters.clone();
        // The last axis varies fastest.
        let mut rest = index;
        let mut choice: Vec<(&str, &str)> = Vec::new();
        for (key, values) in self.axes.iter().rev() {
            choice.push((key, &values[(rest % values.len() as u64) as usize]));
            rest /= values.len() as u64;
        }
        for (key, value) in choice.into_iter().rev() {
            let parameter = file.set(key, value)?;
            parameters.retain(|known| known.key != parameter.key);
            parameters.push(parameter);
        }
        Ok((opened.load_file(&file)?, parameters))
    }
}
