//! Sequential steps of a run, with their durations.

use std::time::{Duration, Instant};

/// Durations of the steps so far.
#[derive(Default)]
pub struct Steps {
    took: Vec<(String, Duration)>,
}

impl Steps {
    /// Runs `work`, and ends the run if it fails.
    pub fn run(
        &mut self,
        name: &str,
        work: impl FnOnce() -> Result<(), String>,
    ) -> Result<(), String> {
        eprintln!("== {name}");
        let started = Instant::now();
        let outcome = work().map_err(|e| format!("{name}: {e}"));
        self.took.push((name.to_owned(), started.elapsed()));
        outcome
    }

    /// Returns a line for each step and a total.
    pub fn table(&self) -> String {
        let line = |name: &str, took: Duration| {
            format!("== {name:<24} {:>5.1} min\n", took.as_secs_f64() / 60.0)
        };
        let steps: String = self.took.iter().map(|(name, took)| line(name, *took)).collect();
        steps + &line("all", self.took.iter().map(|(_, took)| *took).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_every_step_and_the_one_that_failed() {
        let mut steps = Steps::default();
        assert_eq!(steps.run("format", || Ok(())), Ok(()));
        assert_eq!(
            steps.run("build", || Err("broken".to_owned())),
            Err("build: broken".to_owned())
        );
        steps.took = vec![
            ("format".to_owned(), Duration::from_secs(6)),
            ("build".to_owned(), Duration::from_secs(90)),
        ];
        let table = steps.table();
        assert!(table.contains("== format                     0.1 min\n"), "{table}");
        assert!(table.ends_with("== all                        1.6 min\n"), "{table}");
    }
}
