//! Runs the model-based test for any time: `--seed S --steps N --hours H`, each optional.
//!
//! Prints progress; a failure prints its seed and the command that reproduces it.

#[path = "../tests/all/model/driver.rs"]
mod driver;
#[path = "../tests/all/model/generator.rs"]
mod generator;
#[path = "../tests/all/model/net.rs"]
mod net;
#[path = "../tests/all/model/objects.rs"]
mod objects;
#[path = "../tests/all/pair/mod.rs"]
mod pair;
#[path = "../tests/all/model/reference.rs"]
mod reference;

use driver::{EPISODE, episode};
use std::process::ExitCode;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        let at = arguments.iter().position(|a| a == name)?;
        arguments.get(at + 1)?.parse::<f64>().ok()
    };
    let first = value("--seed").unwrap_or(0.0) as u64;
    let hours = value("--hours");
    let steps = value("--steps").unwrap_or(if hours.is_some() { f64::MAX } else { 1e6 }) as u64;
    let begun = Instant::now();
    let (mut done, mut completions, mut told) = (0, 0, Duration::ZERO);
    for seed in first.. {
        match std::panic::catch_unwind(|| episode(seed, EPISODE)) {
            Ok(outcome) => completions += outcome.completions,
            Err(_) => {
                eprintln!(
                    "seed {seed} fails. Again: LONGHAUL_SEED={seed} cargo test -p longhaul-rnic \
                     --test all model::"
                );
                return ExitCode::FAILURE;
            }
        }
        done += EPISODE;
        let elapsed = begun.elapsed();
        let ends = done >= steps || hours.is_some_and(|h| elapsed.as_secs_f64() >= h * 3600.0);
        if ends || elapsed - told > Duration::from_secs(5) {
            told = elapsed;
            let rate = done as f64 / elapsed.as_secs_f64();
            println!("seed {seed}: {done} steps, {rate:.0} steps/s, {completions} completions");
        }
        if ends {
            break;
        }
    }
    ExitCode::SUCCESS
}
