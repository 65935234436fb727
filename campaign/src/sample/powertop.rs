//! What programs draw, as powertop estimates it: the method of the IOWN reports.

use crate::executor::{End, Executor, Refusal, Side};
use crate::process::{Ended, Group, LOOK_AGAIN, Process};
use crate::programs::Launch;
use crate::topology::Topology;
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Name of powertop's power in results.
pub const NAME: &str = "power_powertop";
/// Measures for `$1` s and prints the report, which powertop writes to a file only.
const SCRIPT: &str = "f=$(mktemp) || exit 1; powertop --csv=\"$f\" --time=\"$1\" >&2; s=$?; \
                      cat \"$f\"; rm -f \"$f\"; exit $s";
/// Time for powertop's start and calibration, beyond the seconds that it measures.
const WITHIN: Duration = Duration::from_secs(60);
/// A shell's exit code for a program that does not exist.
const NO_PROGRAM: i32 = 127;

/// powertop at each end of a path.
pub struct Powertop {
    running: Vec<(Option<Side>, Process)>,
    deadline: Instant,
}

/// What powertop told of a run.
#[derive(Debug, Default, PartialEq)]
pub struct Estimate {
    /// Watts by name: of all programs, and over ssh of each side's.
    pub values: BTreeMap<String, f64>,
    /// Why there are none.
    pub absent: Option<String>,
}

impl Powertop {
    /// Starts it for `seconds` at the ends of `topology`; once where they are one machine.
    ///
    /// # Errors
    /// The executor has no such host, or there is no shell.
    pub fn start(
        executor: &dyn Executor,
        topology: Topology,
        seconds: u32,
    ) -> Result<Self, Refusal> {
        let words = ["sh", "-c", SCRIPT, "sh", &seconds.to_string()].map(str::to_owned);
        let mut launches = Vec::new();
        if executor.is_remote() {
            let of = |side, count| (0..count).map(move |number| End { side, number });
            let clients = of(Side::Client, topology.clients);
            for end in clients.chain(of(Side::Server, topology.servers)) {
                let host = executor.host(end).unwrap_or_default();
                let name = format!("powertop on {host}");
                launches.push((Some(end.side), executor.launch(end, name, &words)?));
            }
        } else {
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]);
            launches.push((None, Launch::here("powertop", command)));
        }
        let start = |(side, launch): (Option<Side>, Launch)| {
            let Launch { name, command, interruption } = launch;
            let process = Process::start(name, command, interruption, Group::Own);
            Ok((side, process.map_err(|error| Refusal(format!("cannot run sh: {error}")))?))
        };
        let running = launches.into_iter().map(start).collect::<Result<_, _>>()?;
        let deadline = Instant::now() + Duration::from_secs(seconds.into()) + WITHIN;
        Ok(Powertop { running, deadline })
    }

    /// Waits until it has measured, unless `stop` is set.
    fn finish(mut self, stop: &AtomicBool) -> Vec<(Option<Side>, Ended)> {
        let is_over = |running: &mut Vec<(Option<Side>, Process)>| {
            running.iter_mut().all(|(_, process)| process.status().is_some())
        };
        while !is_over(&mut self.running)
            && !stop.load(Ordering::Relaxed)
            && Instant::now() < self.deadline
        {
            sleep(LOOK_AGAIN);
        }
        self.running.into_iter().map(|(side, process)| (side, process.end())).collect()
    }

    /// Waits until it has measured, and returns what `programs` drew: the words of their commands.
    pub fn end(self, programs: &[Vec<String>], stop: &AtomicBool) -> Estimate {
        let mut estimate = Estimate::default();
        let mut all_w = 0.0;
        for (side, ended) in self.finish(stop) {
            let watts = report(&ended).and_then(|report| watts(&report, programs));
            let watts = match watts {
                Ok(watts) => watts,
                Err(why) => {
                    estimate.values.clear();
                    estimate.absent = Some(format!("{}: {why}", ended.name));
                    return estimate;
                }
            };
            all_w += watts;
            if let Some(side) = side {
                let name = format!("powertop_{}_w", side.name());
                *estimate.values.entry(name).or_default() += watts;
            }
        }
        estimate.values.insert(format!("{NAME}_w"), all_w);
        estimate
    }
}

/// Checks that powertop estimates power at each end of `topology`, which takes some seconds.
///
/// # Errors
/// In one line, why it does not.
pub fn check(
    executor: &dyn Executor,
    topology: Topology,
    stop: &AtomicBool,
) -> Result<(), Refusal> {
    for (_, ended) in Powertop::start(executor, topology, 1)?.finish(stop) {
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        let power = report(&ended).and_then(|report| Table::of(&report)?.power().map(|_| ()));
        power.map_err(|why| Refusal(format!("{}: {why}", ended.name)))?;
    }
    Ok(())
}

/// The report of a powertop that has ended.
fn report(ended: &Ended) -> Result<String, String> {
    match ended.status {
        None => Err("it did not end in time".to_owned()),
        Some(status) if status.success() => Ok(ended.stdout.clone()),
        Some(status) if status.code() == Some(NO_PROGRAM) || is_unknown(&ended.stderr) => {
            Err("it is not installed: apt-get install powertop".to_owned())
        }
        Some(status) => Err(ended.last_words().map_or(status.to_string(), str::to_owned)),
    }
}

fn is_unknown(errors: &str) -> bool {
    errors.lines().any(|line| line.contains("powertop") && line.contains("not found"))
}

/// Consumers of power in a report: a table whose columns are separated by semicolons up to release
/// 2.15, and by commas with quotes since. Descriptions may have semicolons.
struct Table<'a> {
    separator: char,
    lines: Vec<&'a str>,
    has_power: bool,
}

impl<'a> Table<'a> {
    /// The first table of consumers in which each has a description and a category of its own:
    /// that of all software.
    fn of(report: &'a str) -> Result<Self, String> {
        let mut lines = report.lines().map(str::trim);
        let head = lines.find(|line| line.starts_with("Usage") && line.contains("Wakeups/s"));
        let head = head.ok_or("its report has no table of software")?;
        let separator = head.chars().nth("Usage".len()).unwrap_or(';');
        let lines = lines.take_while(|line| !line.is_empty() && !line.starts_with(['_', '#', '*']));
        let has_power = head.ends_with("PW Estimate");
        Ok(Table { separator, lines: lines.collect(), has_power })
    }

    /// The power of each process: its description, and watts.
    fn power(&self) -> Result<Vec<(&'a str, f64)>, String> {
        if !self.has_power {
            let why = "it reports no power here, as on a machine with neither battery nor RAPL \
                       that it can read";
            return Err(why.to_owned());
        }
        let row = |line: &&'a str| {
            let (begin, power) = line.rsplit_once(self.separator)?;
            let mut columns = begin.splitn(7, self.separator);
            let (category, description) = (columns.nth(5)?, columns.next()?);
            let watts = in_watts(power)?;
            (category.trim() == "Process").then_some((description.trim().trim_matches('"'), watts))
        };
        Ok(self.lines.iter().filter_map(row).collect())
    }
}

/// A power as powertop writes it: `  1.45 W`, `145 mW`.
fn in_watts(text: &str) -> Option<f64> {
    let text = text.trim().trim_matches('"').trim();
    let unit_at = text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '-'))?;
    let (number, unit) = text.split_at(unit_at);
    let factor = match unit.trim().strip_suffix('W')?.trim() {
        "k" => 1e3,
        "" => 1.0,
        "m" => 1e-3,
        "u" | "µ" => 1e-6,
        "n" => 1e-9,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * factor)
}

/// Watts of the processes in `report` that run one of `programs`.
fn watts(report: &str, programs: &[Vec<String>]) -> Result<f64, String> {
    let processes = Table::of(report)?.power()?;
    let ours = processes.iter().filter(|(description, _)| {
        let line = description.split_once("] ").map_or(*description, |(_, line)| line);
        programs.iter().any(|words| runs(line, words))
    });
    let (mut sum, mut count) = (0.0, 0);
    for (_, watts) in ours {
        sum += watts;
        count += 1;
    }
    match count {
        0 => Err("it lists none of the programs: they have to run longer than 'powertop_s', or \
                  draw next to nothing"
            .to_owned()),
        _ => Ok(sum),
    }
}

/// True if the command line of a process is that of a program; of `longhaul`, with its command.
fn runs(line: &str, words: &[String]) -> bool {
    let base = |word: &str| word.rsplit('/').next().unwrap_or(word).to_owned();
    let mut of_process = line.split_whitespace();
    let mut of_program = words.iter();
    let (Some(process), Some(program)) = (of_process.next(), of_program.next()) else {
        return false;
    };
    let is_same = base(process) == base(program);
    is_same && (base(program) != "longhaul" || of_process.next() == of_program.next().map(|w| &**w))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of release 2.15.
    const OLD: &str = "PowerTOP Version;2.15 ran at Fri Jun 7 2024\n\
        ____________________________________________________________________\n\
        \x20*  *  *   Top 10 Power Consumers   *  *  *\n\n\
        Usage;Events/s;Category;Description;PW Estimate\n\
        99.0%;12.0;Process;[PID 812] ib_write_bw -d mlx5_0 -R;1.40 W\n\n\
        ____________________________________________________________________\n\
        \x20*  *  *   Overview of Software Power Consumers   *  *  *\n\n\
        Usage;Wakeups/s;GPU ops/s;Disk IO/s;GFX Wakeups/s;Category;Description;PW Estimate\n\
        998.2 ms/s;  12.0;;;;Process;[PID 812] ib_write_bw -d mlx5_0 -R;  1.40 W\n\
        \x20 3.1 ms/s;  80.1;;;;Interrupt;[7] sched(softirq);  210 mW\n\
        \x20 2.0 ms/s;   1.0;;;;Process;[PID 90] sh -c a;b;  30.5 mW\n\
        \x20 1.0 ms/s;   1.0;;;;Process;[PID 813] /usr/bin/ib_write_bw -R 10.0.0.1;  600 mW\n\
        \x20 0.0 us/s;   0.1;;;;Process;[PID 9] [kworker];    0 mW\n\n\
        ____________________________________________________________________\n";

    fn program(words: &str) -> Vec<String> {
        words.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn the_programs_of_a_run_are_found_in_reports_of_both_forms() {
        let ours = [program("ib_write_bw -d mlx5_0"), program("ib_write_bw -d mlx5_0 10.0.0.1")];
        assert_eq!(watts(OLD, &ours), Ok(2.0));
        let new = "PowerTOP\n\n# Overview of Software Power Consumers\n\n\
            Usage,Wakeups/s,GPU ops/s,Disk IO/s,GFX Wakeups/s,Category,Description,PW Estimate\n\
            998.2 ms/s,  12.0,,,,Process,\"[PID 812] longhaul storage host, --bs 4K\",  1.40 W\n\
            10.0 ms/s,  12.0,,,,Process,[PID 7] longhaul measure x.toml,  0.7 W\n\n\
            # Overview of Devices\n";
        assert_eq!(watts(new, &[program("/opt/longhaul storage host,")]), Ok(1.4));
        assert!(watts(OLD, &[program("iperf3")]).unwrap_err().contains("none of the programs"));
        assert_eq!(watts(OLD, &[program("sh -c")]), Ok(0.0305), "a semicolon in a description");
    }

    #[test]
    fn a_machine_without_power_is_told_apart_from_a_report_that_is_none() {
        let powerless = OLD.replace(";PW Estimate", "").replace(";  1.40 W", "");
        assert!(watts(&powerless, &[]).unwrap_err().contains("neither battery nor RAPL"));
        assert!(watts("", &[]).unwrap_err().contains("no table"));
        let powers = ["1.45 W", "  145 mW", "12.5 uW", "0 mW", "W", "3 J"].map(in_watts);
        let expected = [Some(1.45), Some(0.145), Some(12.5e-6), Some(0.0), None, None];
        for (found, expected) in powers.iter().zip(expected) {
            let is_same = match (found, expected) {
                (Some(found), Some(expected)) => (found - expected).abs() < 1e-12,
                (found, expected) => found.is_none() && expected.is_none(),
            };
            assert!(is_same, "{found:?} is not {expected:?}");
        }
    }
}
