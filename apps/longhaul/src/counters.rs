//! `longhaul counters`: device counters of a lab's hosts.
//!
//! Each program's device keeps its counters as files, in Linux's layout for NICs. A host's counters
//! are the sums over its current and past programs.

use crate::output;
use crate::problem::Problem;
use longhaul_lab::{HostName, LabDir, LabName};
use longhaul_rnic::Counter;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  longhaul counters                        every host of the lab, counters that are not zero
  longhaul counters --host b --all         all of host b's
  longhaul counters --watch 1              what has changed, each second
  longhaul counters --prometheus           for a scraper
  longhaul counters --paths                directories that tools can be pointed to instead of /sys
  longhaul counters --dir /tmp/c           of a device that was given LONGHAUL_COUNTERS=/tmp/c

The files below a directory follow the device of one program about once per second, and go on
counting from program to program. They are laid out as below /sys:
class/infiniband/longhaul0/ports/1/hw_counters/ and so on.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Which lab
    #[arg(long, default_value_t)]
    lab: LabName,
    /// One host only
    #[arg(long)]
    host: Option<HostName>,
    /// The counters below this directory, of no lab
    #[arg(long, conflicts_with_all = ["lab", "host"])]
    dir: Option<PathBuf>,
    /// Zeros too
    #[arg(long)]
    all: bool,
    /// Print what was counted, and every so many seconds what was added since
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    #[arg(conflicts_with_all = ["json", "prometheus"])]
    watch: Option<u64>,
    /// Print as JSON
    #[arg(long, conflicts_with = "prometheus")]
    json: bool,
    /// Print in Prometheus' text format
    #[arg(long)]
    prometheus: bool,
    /// Print the directories that the counters are in
    #[arg(long, conflicts_with_all = ["json", "prometheus", "watch"])]
    paths: bool,
}

/// A host's counters by name.
type Counts = BTreeMap<String, u64>;

/// Counter directories of each host, or the one given directory.
type Sources = Vec<(String, Vec<PathBuf>)>;

pub fn run(args: &Args) -> Result<ExitCode, Problem> {
    if args.paths {
        let dirs = sources(args)?.into_iter().flat_map(|(_, dirs)| dirs);
        output::print(
            &dirs.fold(String::new(), |text, dir| text + &format!("{}\n", dir.display())),
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut before = BTreeMap::new();
    loop {
        let now = read_all(&sources(args)?)?;
        output::print(&rendered(args, &now, &before)?)?;
        let Some(seconds) = args.watch else { return Ok(ExitCode::SUCCESS) };
        output::print(&format!("--- added in the next {seconds} s\n"))?;
        before = now;
        sleep(Duration::from_secs(seconds));
    }
}

fn sources(args: &Args) -> Result<Sources, Problem> {
    if let Some(dir) = &args.dir {
        if !port_dir(dir).is_dir() {
            return Err(Problem::new(
                format!("{} holds no counters of a device", dir.display()),
                "name the directory that the program was given as LONGHAUL_COUNTERS",
            ));
        }
        return Ok(vec![("device".to_string(), vec![dir.clone()])]);
    }
    let lab = LabDir::of(&args.lab)?;
    let spec = lab.spec()?;
    if let Some(host) = args.host {
        spec.check_host(host)?;
    }
    let wanted = |host: &HostName| args.host.is_none_or(|one| one == *host);
    Ok(spec.hosts().filter(wanted).map(|host| (host.to_string(), lab.counter_dirs(host))).collect())
}

fn port_dir(dir: &Path) -> PathBuf {
    dir.join("class/infiniband/longhaul0/ports/1")
}

fn read_all(sources: &Sources) -> Result<BTreeMap<String, Counts>, Problem> {
    let mut hosts = BTreeMap::new();
    for (host, dirs) in sources {
        let counts: &mut Counts = hosts.entry(host.clone()).or_default();
        for dir in dirs {
            for kind in ["hw_counters", "counters"] {
                add(&port_dir(dir).join(kind), counts)?;
            }
        }
    }
    Ok(hosts)
}

/// Adds the counters in the files of `dir`.
fn add(dir: &Path, counts: &mut Counts) -> Result<(), Problem> {
    let files = match fs::read_dir(dir) {
        Ok(files) => files,
        // A program that has just started creates it next.
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(Problem::io("read", dir, &e)),
    };
    for file in files.flatten() {
        let text = fs::read_to_string(file.path()).unwrap_or_default();
        let Ok(value) = text.trim().parse::<u64>() else { continue };
        *counts.entry(file.file_name().to_string_lossy().into_owned()).or_default() += value;
    }
    Ok(())
}

fn rendered(
    args: &Args,
    now: &BTreeMap<String, Counts>,
    before: &BTreeMap<String, Counts>,
) -> Result<String, Problem> {
    if args.json {
        let text = serde_json::to_string_pretty(now)
            .map_err(|e| Problem::plain(format!("cannot write the counters as JSON: {e}")))?;
        return Ok(text + "\n");
    }
    if args.prometheus {
        return Ok(prometheus(now));
    }
    if before.is_empty() {
        return Ok(table(now, args.all));
    }
    let added = now.iter().map(|(host, counts)| {
        let old = before.get(host);
        let of = |name: &String| old.and_then(|old| old.get(name)).copied().unwrap_or(0);
        (
            host.clone(),
            counts
                .iter()
                .map(|(name, value)| (name.clone(), value.saturating_sub(of(name))))
                .collect(),
        )
    });
    Ok(table(&added.collect(), args.all))
}

fn names(hosts: &BTreeMap<String, Counts>) -> BTreeSet<&String> {
    hosts.values().flat_map(Counts::keys).collect()
}

fn describe(name: &str) -> &'static str {
    match name {
        "port_xmit_data" => "Bytes sent, divided by 4.",
        "port_rcv_data" => "Bytes received, divided by 4.",
        "port_xmit_packets" => "Frames sent.",
        "port_rcv_packets" => "Frames received.",
        _ => Counter::ALL.iter().find(|c| c.name() == name).map_or("", |c| c.description()),
    }
}

/// A row per counter, a column per host.
fn table(hosts: &BTreeMap<String, Counts>, all: bool) -> String {
    let mut text = format!("{:<36}", "counter");
    for host in hosts.keys() {
        let _ = write!(text, " {host:>16}");
    }
    text.push_str("  what it counts\n");
    let mut rows = 0;
    for name in names(hosts) {
        let values: Vec<u64> =
            hosts.values().map(|counts| counts.get(name).copied().unwrap_or(0)).collect();
        if !all && values.iter().all(|value| *value == 0) {
            continue;
        }
        rows += 1;
        let _ = write!(text, "{name:<36}");
        for value in values {
            let _ = write!(text, " {value:>16}");
        }
        let _ = writeln!(text, "  {}", describe(name));
    }
    if rows == 0 {
        text.push_str("(nothing was counted)\n");
    }
    text
}

fn prometheus(hosts: &BTreeMap<String, Counts>) -> String {
    let mut text = String::new();
    for name in names(hosts) {
        let _ = writeln!(text, "# HELP longhaul_{name}_total {}", describe(name));
        let _ = writeln!(text, "# TYPE longhaul_{name}_total counter");
        for (host, counts) in hosts {
            let value = counts.get(name).copied().unwrap_or(0);
            let _ = writeln!(
                text,
                "longhaul_{name}_total{{device=\"longhaul0\",host=\"{host}\",port=\"1\"}} {value}"
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts() -> BTreeMap<String, Counts> {
        let counts = |sent, lost| {
            Counts::from([("tx_frames".to_string(), sent), ("out_of_sequence".to_string(), lost)])
        };
        BTreeMap::from([("a".to_string(), counts(7, 0)), ("b".to_string(), counts(0, 0))])
    }

    #[test]
    fn the_table_leaves_out_what_is_zero_everywhere() {
        let text = table(&hosts(), false);
        assert!(text.contains("tx_frames") && text.contains("Frames sent."), "{text}");
        assert!(!text.contains("out_of_sequence"), "{text}");
        assert!(table(&hosts(), true).contains("out_of_sequence"));
        assert!(table(&BTreeMap::new(), false).contains("nothing was counted"));
    }

    #[test]
    fn prometheus_gets_a_sample_per_host_with_help_and_type() {
        let text = prometheus(&hosts());
        assert!(text.contains("# TYPE longhaul_tx_frames_total counter\n"), "{text}");
        assert!(
            text.contains(
                "longhaul_tx_frames_total{device=\"longhaul0\",host=\"a\",port=\"1\"} 7\n"
            ),
            "{text}"
        );
    }
}
