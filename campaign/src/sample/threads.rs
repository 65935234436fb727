//! Processor time of the threads of programs, at regular intervals.

use super::{Device, Traffic, middle};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::Write;
use std::fs;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

/// Intervals between two looks for new threads.
const LOOK_EVERY: u32 = 5;
/// Length of a tick of `/proc/PID/stat`, in ns.
const TICK_NS: u64 = 10_000_000;

/// A thread that samples the descendants of this process.
pub struct Sampler {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Activity>,
}

/// Processor time of threads over the intervals of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Activity {
    /// Ends of the intervals, in seconds since the beginning.
    ends_s: Vec<f64>,
    traffic: Vec<Traffic>,
    threads: BTreeMap<Id, Samples>,
}

/// Identifies a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Id {
    process: u32,
    thread: u32,
}

/// The samples of one thread.
#[derive(Clone, Debug, PartialEq)]
struct Samples {
    /// Name of its process, and its own.
    names: [String; 2],
    /// Total processor time at the last sample, in ns.
    total_ns: u64,
    /// Processor time in ns by interval; short for threads that have ended.
    spent_ns: Vec<u64>,
}

impl Sampler {
    /// Begins to sample at `interval`.
    pub fn start(interval: Duration, devices: Vec<Device>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let traffic = devices.into_iter().map(Traffic::new).collect();
            let mut activity = Activity { traffic, ..Activity::default() };
            let began = Instant::now();
            let mut known = Vec::new();
            for number in 0_u32.. {
                if number > 0 {
                    activity.ends_s.push(began.elapsed().as_secs_f64());
                }
                let past = activity.ends_s.len();
                activity.traffic.iter_mut().for_each(|traffic| traffic.take(past));
                let is_look = number.is_multiple_of(LOOK_EVERY);
                if is_look {
                    known = threads_of_descendants(std::process::id());
                }
                for id in &known {
                    activity.take(*id);
                    if is_look {
                        activity.name(*id);
                    }
                }
                if told.load(Ordering::Relaxed) {
                    break;
                }
                let next = interval.saturating_mul(number + 1);
                sleep(next.saturating_sub(began.elapsed()));
            }
            activity
        });
        Sampler { stop, thread }
    }

    /// Ends, and returns what was sampled.
    pub fn end(self) -> Activity {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

impl Activity {
    /// Adds a sample of a thread that may have ended.
    fn take(&mut self, id: Id) {
        let Some(total_ns) = cpu_ns(id) else { return };
        let past = self.ends_s.len();
        match self.threads.entry(id) {
            Entry::Vacant(entry) => {
                // The time before its first sample belongs to no interval.
                let names = Default::default();
                entry.insert(Samples { names, total_ns, spent_ns: vec![0; past] });
            }
            Entry::Occupied(mut entry) => {
                let samples = entry.get_mut();
                samples.spent_ns.resize(past.saturating_sub(1), 0);
                samples.spent_ns.push(total_ns.saturating_sub(samples.total_ns));
                samples.total_ns = total_ns;
            }
        }
    }

    /// Reads the names of a thread. A process has another name before it executes its program.
    fn name(&mut self, id: Id) {
        let Some(samples) = self.threads.get_mut(&id) else { return };
        let paths = [format!("/proc/{}/comm", id.process), file(id, "comm")];
        for (name, path) in samples.names.iter_mut().zip(paths) {
            if let Ok(text) = fs::read_to_string(path) {
                text.trim().clone_into(name);
            }
        }
    }

    /// Lengths of the intervals in seconds.
    fn lengths_s(&self) -> Vec<f64> {
        let begins = std::iter::once(&0.0).chain(&self.ends_s);
        begins.zip(&self.ends_s).map(|(begin, end)| end - begin).collect()
    }

    /// Names of the processes: that of the program, numbered in the order of their start where
    /// there are several, as in `ib_write_bw-2`.
    fn processes(&self) -> BTreeMap<u32, String> {
        let mut by_name: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        for (id, samples) in &self.threads {
            let all = by_name.entry(&samples.names[0]).or_default();
            if !all.contains(&id.process) {
                all.push(id.process);
            }
        }
        let mut names = BTreeMap::new();
        for (name, processes) in by_name {
            let word: String =
                name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
            let is_one = processes.len() == 1;
            names.extend((1..).zip(processes).map(|(number, process): (u32, u32)| {
                (process, if is_one { word.clone() } else { format!("{word}-{number}") })
            }));
        }
        names
    }

    /// Processor time of each process in percent of one processor, by interval.
    pub fn by_process(&self) -> BTreeMap<String, Vec<f64>> {
        let (names, lengths) = (self.processes(), self.lengths_s());
        let mut all: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for (id, samples) in &self.threads {
            let Some(name) = names.get(&id.process) else { continue };
            let of_process = all.entry(name.clone()).or_insert_with(|| vec![0.0; lengths.len()]);
            for ((sum, ns), length_s) in of_process.iter_mut().zip(&samples.spent_ns).zip(&lengths)
            {
                *sum += *ns as f64 / 1e7 / length_s.max(1e-9);
            }
        }
        all
    }

    /// Bits per second of each device and direction, as `DEVICE.sent_bps`, and the fill of its send
    /// queues, as `DEVICE.send_queue_fill`, by interval.
    pub fn by_device(&self) -> BTreeMap<String, Vec<f64>> {
        let lengths = self.lengths_s();
        let rates = self.traffic.iter().flat_map(|traffic| traffic.rates(&lengths));
        rates.chain(self.traffic.iter().filter_map(Traffic::fill)).collect()
    }

    /// Mean length of the intervals in seconds; `None` without intervals.
    pub fn interval_s(&self) -> Option<f64> {
        self.ends_s.last().map(|end| end / self.ends_s.len() as f64)
    }

    /// A line for each interval, with the rates and the fill of each device.
    pub fn csv_of_devices(&self) -> String {
        let all = self.by_device();
        let mut csv = "time_s".to_owned();
        all.keys().for_each(|name| csv += &format!(",{name}"));
        csv.push('\n');
        for (at, end_s) in self.ends_s.iter().enumerate() {
            // Writing to a String cannot fail.
            let _ = write!(csv, "{end_s:.3}");
            for rates in all.values() {
                let _ = write!(csv, ",{:.0}", rates.get(at).copied().unwrap_or(0.0));
            }
            csv.push('\n');
        }
        csv
    }

    /// The intervals of the middle of the run, by the processor time of all processes.
    pub fn middle(&self) -> Range<usize> {
        let mut sums = vec![0.0; self.ends_s.len()];
        for shares in self.by_process().values() {
            sums.iter_mut().zip(shares).for_each(|(sum, share)| *sum += share);
        }
        middle(&sums)
    }

    /// A line for each thread and interval in which it ran.
    pub fn csv(&self) -> String {
        let (names, lengths) = (self.processes(), self.lengths_s());
        let mut csv = "time_s,process,pid,thread,tid,cpu_percent\n".to_owned();
        for (id, samples) in &self.threads {
            let process = names.get(&id.process).map_or("", String::as_str);
            let thread = samples.names[1].replace(['"', ',', '\n'], "_");
            let intervals = samples.spent_ns.iter().zip(&self.ends_s).zip(&lengths);
            for ((ns, end_s), length_s) in intervals.filter(|((ns, _), _)| **ns > 0) {
                let percent = *ns as f64 / 1e7 / length_s.max(1e-9);
                let (pid, tid) = (id.process, id.thread);
                // Writing to a String cannot fail.
                let _ = writeln!(csv, "{end_s:.3},{process},{pid},{thread},{tid},{percent:.1}");
            }
        }
        csv
    }
}

/// A file of a thread.
fn file(id: Id, name: &str) -> String {
    format!("/proc/{}/task/{}/{name}", id.process, id.thread)
}

/// Processor time of a thread so far.
fn cpu_ns(id: Id) -> Option<u64> {
    if let Ok(text) = fs::read_to_string(file(id, "schedstat")) {
        return text.split_whitespace().next()?.parse().ok();
    }
    // Kernels without scheduling statistics have ticks only.
    let stat = fs::read_to_string(file(id, "stat")).ok()?;
    let columns: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |at: usize| columns.get(at)?.parse::<u64>().ok();
    Some((ticks(11)? + ticks(12)?) * TICK_NS)
}

/// Threads of all descendants of a process.
fn threads_of_descendants(process: u32) -> Vec<Id> {
    let tasks = |process: u32| -> Vec<u32> {
        let entries = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten();
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    };
    let mut all = Vec::new();
    let mut parents = vec![process];
    while let Some(parent) = parents.pop() {
        for thread in tasks(parent) {
            let path = file(Id { process: parent, thread }, "children");
            let children = fs::read_to_string(path).unwrap_or_default();
            for child in children.split_whitespace().filter_map(|child| child.parse().ok()) {
                all.extend(tasks(child).into_iter().map(|thread| Id { process: child, thread }));
                parents.push(child);
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn samples(name: &str, spent_ns: &[u64]) -> Samples {
        Samples {
            names: [name.to_owned(), "main".to_owned()],
            total_ns: 0,
            spent_ns: spent_ns.into(),
        }
    }

    #[test]
    fn processes_have_names_and_shares_of_a_processor() {
        let activity = Activity {
            ends_s: vec![0.01, 0.02, 0.04],
            traffic: Vec::new(),
            threads: [
                (Id { process: 7, thread: 7 }, samples("ib_write_bw", &[10_000_000, 5_000_000])),
                (Id { process: 7, thread: 8 }, samples("ib_write_bw", &[0, 5_000_000, 20_000_000])),
                (Id { process: 9, thread: 9 }, samples("ib_write_bw", &[])),
                (Id { process: 5, thread: 5 }, samples("long haul", &[1_000_000])),
            ]
            .into(),
        };
        let all = activity.by_process();
        let names: Vec<&String> = all.keys().collect();
        assert_eq!(names, ["ib_write_bw-1", "ib_write_bw-2", "long_haul"]);
        let rounded = |name: &str| all[name].iter().map(|share| share.round()).collect::<Vec<_>>();
        assert_eq!(rounded("ib_write_bw-1"), [100.0; 3]);
        assert_eq!(rounded("ib_write_bw-2"), [0.0; 3]);
        assert_eq!(activity.middle(), 0..3);
        let csv = activity.csv();
        assert!(csv.contains("0.040,ib_write_bw-1,7,main,8,100.0\n"), "{csv}");
        assert_eq!(csv.lines().count(), 6, "{csv}");
    }

    #[test]
    fn a_program_that_computes_is_seen() {
        let sampler = Sampler::start(Duration::from_millis(10), Vec::new());
        let mut sh = Command::new("sh");
        sh.args(["-c", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done"]).stdin(Stdio::null());
        assert!(sh.status().unwrap().success());
        let activity = sampler.end();
        let all = activity.by_process();
        // Shells of other tests are descendants of this process too.
        let shells = all.iter().filter(|(name, _)| name.starts_with("sh"));
        assert!(shells.flat_map(|(_, shares)| shares).sum::<f64>() > 0.0, "{all:?}");
        assert!(!activity.middle().is_empty());
    }
}
