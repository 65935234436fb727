//! Steps of a run, with their durations.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Durations of the steps so far, of which several may run at a time.
pub struct Steps {
    started: Instant,
    took: Mutex<Vec<(String, Duration)>>,
}

impl Steps {
    /// None; the run begins now.
    pub fn begin() -> Self {
        Steps { started: Instant::now(), took: Mutex::default() }
    }

    /// Runs `work`; its error is preceded by the step's name.
    pub fn run<T>(
        &self,
        name: &str,
        work: impl FnOnce() -> Result<T, String>,
    ) -> Result<T, String> {
        eprintln!("== {name}");
        let started = Instant::now();
        let outcome = work().map_err(|e| format!("{name}: {e}"));
        self.took().push((name.to_owned(), started.elapsed()));
        outcome
    }

    fn took(&self) -> MutexGuard<'_, Vec<(String, Duration)>> {
        self.took.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a line for each step, in the order in which they ended, and one for the whole run,
    /// which takes less than their sum if they overlap.
    pub fn table(&self) -> String {
        let line = |name: &str, took: Duration| {
            format!("== {name:<24} {:>5.1} min\n", took.as_secs_f64() / 60.0)
        };
        let steps: String = self.took().iter().map(|(name, took)| line(name, *took)).collect();
        steps + &line("all", self.started.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_every_step_and_the_one_that_failed() {
        let steps = Steps::begin();
        assert_eq!(steps.run("format", || Ok(())), Ok(()));
        assert_eq!(
            steps.run::<()>("build", || Err("broken".to_owned())),
            Err("build: broken".to_owned())
        );
        steps.took()[0].1 = Duration::from_secs(6);
        steps.took()[1].1 = Duration::from_secs(90);
        let table = steps.table();
        assert!(table.contains("== format                     0.1 min\n"), "{table}");
        assert!(table.contains("== build                      1.5 min\n"), "{table}");
        assert!(table.ends_with("== all                        0.0 min\n"), "{table}");
    }
}
