//! Statistics of a bench's samples, and the file that stores them.

use clap::Args;
use longhaul_bench::Samples;
use serde_json::Value;
use std::env;
use std::fs;
use std::path::PathBuf;

/// Number and duration of measurements.
#[derive(Args)]
pub struct Rounds {
    /// Rounds; the median counts
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Seconds of one measurement
    #[arg(long, default_value_t = 3)]
    pub seconds: u32,
}

/// Destination of a bench's samples.
#[derive(Args)]
pub struct Keep {
    /// Where the samples go; next to the build by default
    #[arg(long)]
    json: Option<PathBuf>,
    /// Given by cargo
    #[arg(long, hide = true)]
    bench: bool,
}

/// The median: the middle sample, or the mean of the two in the middle.
///
/// # Panics
/// If there are no samples.
pub fn median(samples: &[f64]) -> f64 {
    Samples::new(samples.iter().copied()).expect("samples").median()
}

impl Keep {
    /// Writes the samples to the user's file, or to `name` beside the built programs, and prints
    /// the path.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn write(self, name: &str, samples: &Value) {
        let path = self.json.unwrap_or_else(|| {
            let bench = env::current_exe().expect("the path of this program");
            let deps = bench.parent().expect("a directory");
            deps.with_file_name(name)
        });
        fs::write(&path, format!("{samples:#}\n"))
            .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        println!("samples: {}", path.display());
    }
}
