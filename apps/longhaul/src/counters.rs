//! `longhaul counters`: device counters of a lab's hosts.
//!
//! A device keeps its counters as files, in Linux's layout for NICs: the sums over the current and
//! past programs of its host.

use crate::output;
use crate::problem::Problem;
use longhaul_boxes::number::at_least;
use longhaul_health::{Metrics, labels};
use longhaul_lab::{HostName, LabDir, LabName};
use longhaul_rnic::Counter;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::io;
use std::iter::once;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  longhaul counters                        every host of the lab, counters that are not zero
  longhaul counters --host b --all         all of host b's
  longhaul counters --watch 1              changes, once per second
  longhaul counters --prometheus           for a scraper
  longhaul counters --paths                directories for tools, instead of /sys
  longhaul counters --dir /tmp/c           of a device with LONGHAUL_COUNTERS=/tmp/c

The files below a directory follow a host's device about once per second, and add up the counts of
all its programs. Their layout is that of /sys:
class/infiniband/longhaul0/ports/1/hw_counters/ and so on.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Name of the lab
    #[arg(long, default_value_t)]
    lab: LabName,
    /// Show only this host
    #[arg(long)]
    host: Option<HostName>,
    /// Show the counters below this directory, without a lab
    #[arg(long, conflicts_with_all = ["lab", "host"])]
    dir: Option<PathBuf>,
    /// Include counters that are zero
    #[arg(long)]
    all: bool,
    /// Print the counters, and every N seconds the changes since
    #[arg(long, value_name = "SECONDS", value_parser = at_least(1))]
    #[arg(conflicts_with_all = ["json", "prometheus"])]
    watch: Option<u64>,
    /// Print as JSON
    #[arg(long, conflicts_with = "prometheus")]
    json: bool,
    /// Print in Prometheus' text format
    #[arg(long)]
    prometheus: bool,
    /// Print the directories of the counters
    #[arg(long, conflicts_with_all = ["json", "prometheus", "watch"])]
    paths: bool,
}

/// Columns that a wrapped description needs.
const MEANING_MIN: usize = 20;

/// A host's counters by name.
type Counts = BTreeMap<String, u64>;

/// The counter directory of each host, or the given one.
type Sources = Vec<(String, PathBuf)>;

pub fn run(args: &Args) -> Result<ExitCode, Problem> {
    if args.paths {
        // A host has one once it has run a program.
        let dirs = sources(args)?.into_iter().map(|(_, dir)| dir).filter(|dir| dir.is_dir());
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
                "name the directory in the program's LONGHAUL_COUNTERS",
            ));
        }
        return Ok(vec![("device".to_string(), dir.clone())]);
    }
    let lab = LabDir::of(&args.lab)?;
    let spec = lab.spec()?;
    if let Some(host) = args.host {
        spec.check_host(host)?;
    }
    let wanted = |host: &HostName| args.host.is_none_or(|one| one == *host);
    Ok(spec.hosts().filter(wanted).map(|host| (host.to_string(), lab.counters(host))).collect())
}

fn port_dir(dir: &Path) -> PathBuf {
    dir.join("class/infiniband/longhaul0/ports/1")
}

fn read_all(sources: &Sources) -> Result<BTreeMap<String, Counts>, Problem> {
    let mut hosts = BTreeMap::new();
    for (host, dir) in sources {
        let counts: &mut Counts = hosts.entry(host.clone()).or_default();
        for kind in ["hw_counters", "counters"] {
            add(&port_dir(dir).join(kind), counts)?;
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
        return Ok(table(now, args.all, output::columns()));
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
    Ok(table(&added.collect(), args.all, output::columns()))
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
        _ => Counter::ALL.iter().find(|c| c.name() == name).map_or("", |c| c.meaning()),
    }
}

/// A row per counter and a column per host; if the columns do not fit, a row per host, in blocks of
/// as many counters as fit.
fn table(hosts: &BTreeMap<String, Counts>, all: bool, width: usize) -> String {
    let value = |host: &Counts, name: &String| host.get(name).copied().unwrap_or(0);
    let mut names = names(hosts);
    names.retain(|name| all || hosts.values().any(|counts| value(counts, name) > 0));
    if names.is_empty() {
        return "(all counters are zero)\n".to_string();
    }
    let mut rows = vec![once("counter".to_string()).chain(hosts.keys().cloned()).collect()];
    rows.extend(names.iter().map(|name| {
        let values = hosts.values().map(|counts| value(counts, name).to_string());
        once((*name).clone()).chain(values).collect::<Vec<String>>()
    }));
    let widths = widths(&rows);
    let figures = taken(&widths);
    if figures <= width {
        let indent = " ".repeat(figures + 2);
        let room = width.saturating_sub(indent.len());
        let described = |row: &[String]| {
            let what = if row[0] == "counter" { "meaning" } else { describe(&row[0]) };
            let what = if room < MEANING_MIN {
                output::table::truncate(what, room)
            } else {
                textwrap::wrap(what, room).join(&format!("\n{indent}"))
            };
            format!("{}  {what}", line(row, &widths)).trim_end().to_string() + "\n"
        };
        return rows.iter().map(|row| described(row)).collect();
    }
    by_host(&rows, width)
}

/// The same table with hosts as rows, in blocks that fit.
fn by_host(rows: &[Vec<String>], width: usize) -> String {
    let mut transposed: Vec<Vec<String>> =
        (0..rows[0].len()).map(|host| rows.iter().map(|row| row[host].clone()).collect()).collect();
    transposed[0][0] = "host".to_string();
    output::table::blocks(&transposed, 1, width)
}

/// Each column's width.
fn widths(rows: &[Vec<String>]) -> Vec<usize> {
    (0..rows[0].len()).map(|at| rows.iter().map(|row| row[at].len()).max().unwrap_or(0)).collect()
}

/// Total width of columns of these widths, with two blanks between.
fn taken(widths: &[usize]) -> usize {
    widths.iter().map(|width| width + 2).sum::<usize>().saturating_sub(2)
}

/// The first cell to the left, the others to the right.
fn line(row: &[String], widths: &[usize]) -> String {
    let mut text = format!("{:<1$}", row[0], widths[0]);
    for (cell, width) in row.iter().zip(widths).skip(1) {
        let _ = write!(text, "  {cell:>width$}");
    }
    text
}

fn prometheus(hosts: &BTreeMap<String, Counts>) -> String {
    let mut metrics = Metrics::default();
    for name in names(hosts) {
        for (host, counts) in hosts {
            let of_host = labels(&[("device", "longhaul0"), ("host", host), ("port", "1")]);
            let value = counts.get(name).copied().unwrap_or(0);
            metrics.count(&format!("longhaul_{name}"), describe(name), &of_host, value);
        }
    }
    metrics.exposition()
}

#[cfg(test)]
pub mod tests {
    use super::*;

    fn hosts() -> BTreeMap<String, Counts> {
        let counts = |sent, lost| {
            Counts::from([("tx_frames".to_string(), sent), ("out_of_sequence".to_string(), lost)])
        };
        BTreeMap::from([("a".to_string(), counts(7, 0)), ("b".to_string(), counts(0, 0))])
    }

    fn many_hosts() -> BTreeMap<String, Counts> {
        let of = |host: u64| {
            let counts = ["tx_frames", "rx_frames", "out_of_sequence", "local_ack_timeout_err"];
            let counts = (1u64..).zip(counts);
            Counts::from_iter(counts.map(|(n, name)| (name.to_string(), 1_000_000 * host + n)))
        };
        (1..=26).map(|host| (format!("host-{host:02}"), of(host))).collect()
    }

    /// The tables of two hosts and of 26.
    pub fn view(width: usize) -> String {
        table(&hosts(), true, width) + &table(&many_hosts(), false, width)
    }

    #[test]
    fn the_table_leaves_out_what_is_zero_everywhere() {
        let text = table(&hosts(), false, 100);
        assert!(text.contains("tx_frames") && text.contains("Frames sent."), "{text}");
        assert!(!text.contains("out_of_sequence"), "{text}");
        assert!(table(&hosts(), true, 100).contains("out_of_sequence"));
        assert!(table(&BTreeMap::new(), false, 100).contains("all counters are zero"));
    }

    #[test]
    fn descriptions_are_wrapped_and_not_cut() {
        let counts = |value| Counts::from([("local_ack_timeout_err".to_string(), value)]);
        let hosts = BTreeMap::from([("a".to_string(), counts(1)), ("b".to_string(), counts(2))]);
        let text = table(&hosts, true, 60);
        assert!(text.lines().all(|line| line.len() <= 60) && !text.contains('…'), "{text}");
        let words: Vec<_> = text.split_whitespace().collect();
        assert!(words.join(" ").ends_with(describe("local_ack_timeout_err")), "{text}");
    }

    #[test]
    fn many_hosts_are_rows_and_every_figure_is_whole() {
        let hosts = many_hosts();
        for width in [80, 100, 140] {
            let text = table(&hosts, false, width);
            assert!(text.lines().all(|line| line.len() <= width), "{width}:\n{text}");
            for (name, counts) in &hosts {
                let lines: Vec<_> = text.lines().filter(|line| line.starts_with(name)).collect();
                for value in counts.values() {
                    let is_there =
                        |line: &&str| line.split_whitespace().any(|word| word == value.to_string());
                    assert!(lines.iter().any(is_there), "{width}, {name}, {value}:\n{text}");
                }
            }
        }
        assert!(table(&hosts, false, 400).starts_with("counter "));
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
