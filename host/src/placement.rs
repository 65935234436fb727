//! Placement of a box's threads on processors.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fmt;
use std::fs;
use std::io;
use std::num::NonZeroUsize;
use std::path::Path;
use std::str::FromStr;
use thiserror::Error;

/// Maximum number of cores of a box. Rings connect each pair of them.
pub const CORES_MAX: usize = 32;

/// The cores of a box in a user's notation: a number, as `2`, or processors, as `4-7` or `0,2`;
/// `3-3` is processor 3 alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoreList {
    /// This number of cores, on any processors.
    Any(NonZeroUsize),
    /// One core on each of these processors, in this order; 1 to [`CORES_MAX`], without duplicates.
    These(Vec<usize>),
}

impl Default for CoreList {
    /// One.
    fn default() -> Self {
        CoreList::Any(NonZeroUsize::MIN)
    }
}

/// Why a list of cores is invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CoreListError {
    /// It is neither a number nor a list.
    #[error("'{0}' is no list of cores: write how many, as 2, or which processors, as 4-7 or 0,2")]
    NotAList(String),
    /// There are none, or more than [`CORES_MAX`].
    #[error("{0} cores: a box runs on 1 to {CORES_MAX}")]
    Count(usize),
    /// Two cores would run on one processor.
    #[error("processor {0} is named twice")]
    Twice(usize),
    /// There is no such processor, or this process may not use it.
    #[error("processor {processor} is not there, or not for this process, which may use {allowed}")]
    NotAllowed {
        /// The processor.
        processor: usize,
        /// Processors that it may use, as a list.
        allowed: String,
    },
    /// More cores than processors.
    #[error("{wanted} cores are more than the processors that this process may use, {allowed}")]
    TooMany {
        /// Number of cores.
        wanted: usize,
        /// Processors that the process may use, as a list.
        allowed: String,
    },
}

impl CoreList {
    /// Number of cores, at least 1.
    #[must_use]
    pub fn count(&self) -> NonZeroUsize {
        match self {
            CoreList::Any(count) => *count,
            CoreList::These(processors) => {
                NonZeroUsize::new(processors.len()).unwrap_or(NonZeroUsize::MIN)
            }
        }
    }

    /// Checks that the cores can run on the `allowed` processors.
    ///
    /// # Errors
    /// [`CoreListError::NotAllowed`] and [`CoreListError::TooMany`].
    pub fn check(&self, allowed: &[usize]) -> Result<(), CoreListError> {
        let listed = || list_text(allowed);
        match self {
            CoreList::Any(count) if count.get() > allowed.len() => {
                Err(CoreListError::TooMany { wanted: count.get(), allowed: listed() })
            }
            CoreList::Any(_) => Ok(()),
            CoreList::These(processors) => match processors
                .iter()
                .find(|one| !allowed.contains(one))
            {
                Some(&processor) => Err(CoreListError::NotAllowed { processor, allowed: listed() }),
                None => Ok(()),
            },
        }
    }
}

impl FromStr for CoreList {
    type Err = CoreListError;

    fn from_str(text: &str) -> Result<Self, CoreListError> {
        let count = |count| match count {
            1..=CORES_MAX => Ok(count),
            _ => Err(CoreListError::Count(count)),
        };
        if let Ok(number) = text.parse::<usize>() {
            return count(number).map(|number| {
                CoreList::Any(NonZeroUsize::new(number).unwrap_or(NonZeroUsize::MIN))
            });
        }
        let processors = read_list(text).ok_or_else(|| CoreListError::NotAList(text.to_owned()))?;
        count(processors.len())?;
        let is_again = |(at, one): (usize, &usize)| processors[..at].contains(one).then_some(*one);
        match processors.iter().enumerate().find_map(is_again) {
            Some(processor) => Err(CoreListError::Twice(processor)),
            None => Ok(CoreList::These(processors)),
        }
    }
}

impl TryFrom<String> for CoreList {
    type Error = CoreListError;

    fn try_from(text: String) -> Result<Self, CoreListError> {
        text.parse()
    }
}

impl fmt::Display for CoreList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CoreList::Any(count) => count.fmt(f),
            CoreList::These(processors) => match processors[..] {
                // A single number would mean a count.
                [only] => write!(f, "{only}-{only}"),
                _ => f.write_str(&list_text(processors)),
            },
        }
    }
}

/// Parses `0-3,8`, the kernel's format. `None` for any other text, and for more processors than the
/// kernel supports.
fn read_list(text: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for part in text.trim_end().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        if first > last || last >= CpuSet::MAX_CPU {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

/// Formats processors as `0-3,8`, like the kernel.
#[must_use]
pub fn list_text(processors: &[usize]) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut rest = processors;
    while let [first, behind @ ..] = rest {
        let run = behind.iter().zip(first + 1..).take_while(|(one, next)| **one == *next).count();
        parts.push(if run == 0 { first.to_string() } else { format!("{first}-{}", first + run) });
        rest = &behind[run..];
    }
    parts.join(",")
}

/// Processors that the calling thread may run on.
///
/// # Errors
/// If the system does not report them.
pub fn allowed() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|one| set.is_set(*one)).collect())
}

/// Restricts the calling thread, and threads that it starts, to these processors. Needs no
/// privilege.
///
/// # Errors
/// If this process may use none of them.
pub fn run_on(processors: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for one in processors.iter().filter(|one| **one < CpuSet::MAX_CPU) {
        set.set(*one);
    }
    Ok(sched_setaffinity(None, &set)?)
}

/// NUMA node of a network interface's device; `None` for interfaces without a device, and on
/// machines with a single node.
#[must_use]
pub fn node_of_interface(interface: &str) -> Option<u32> {
    let path = Path::new("/sys/class/net").join(interface).join("device/numa_node");
    let node = fs::read_to_string(path).ok()?.trim_end().parse::<u32>().ok()?;
    (nodes() > 1).then_some(node)
}

fn nodes() -> usize {
    let listed = fs::read_to_string("/sys/devices/system/node/online").ok();
    listed.and_then(|text| read_list(&text)).map_or(1, |nodes| nodes.len())
}

/// Processors of a NUMA node.
///
/// # Errors
/// If there is no such node.
pub fn processors_of_node(node: u32) -> io::Result<Vec<usize>> {
    let text = fs::read_to_string(format!("/sys/devices/system/node/node{node}/cpulist"))?;
    read_list(&text).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, format!("its processors are '{text}'"))
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<CoreList, CoreListError> {
        text.parse()
    }

    #[test]
    fn a_number_is_how_many_and_a_list_is_which() {
        assert_eq!(read("2").unwrap().count().get(), 2);
        assert_eq!(read("4-7"), Ok(CoreList::These(vec![4, 5, 6, 7])));
        assert_eq!(read("0,2"), Ok(CoreList::These(vec![0, 2])));
        assert_eq!(read("3-3"), Ok(CoreList::These(vec![3])));
        for (text, part) in [
            ("0", "0 cores: a box runs on 1 to 32"),
            ("33", "33 cores"),
            ("0-32", "33 cores"),
            ("1,2,1", "processor 1 is named twice"),
            ("", "is no list of cores"),
            ("two", "write how many, as 2"),
            ("7-4", "is no list"),
            ("1,", "is no list"),
            ("-1", "is no list"),
            ("1-99999999999", "is no list"),
        ] {
            let refusal = read(text).unwrap_err().to_string();
            assert!(refusal.contains(part), "{text}: {refusal}");
        }
    }

    #[test]
    fn processors_that_are_not_there_are_refused() {
        let refusal = |text: &str| read(text).unwrap().check(&[0, 1, 4]).unwrap_err().to_string();
        assert_eq!(
            refusal("1-2"),
            "processor 2 is not there, or not for this process, which may use 0-1,4"
        );
        assert_eq!(
            refusal("4"),
            "4 cores are more than the processors that this process may use, 0-1,4"
        );
        assert!(
            read("3").unwrap().check(&[0, 1, 4]).is_ok()
                && read("4,0").unwrap().check(&[0, 1, 4]).is_ok()
        );
    }

    #[test]
    fn a_thread_runs_where_it_is_put() {
        let all = allowed().unwrap();
        std::thread::spawn(move || {
            let last = [*all.last().unwrap()];
            run_on(&last).unwrap();
            assert_eq!(allowed().unwrap(), last);
        })
        .join()
        .unwrap();
        assert!(run_on(&[]).is_err());
        assert_eq!(node_of_interface("lo"), None);
        assert!(processors_of_node(u32::MAX).is_err());
    }

    proptest! {
        #[test]
        fn a_list_reads_as_it_is_written(
            processors in proptest::collection::vec(0..1000_usize, 1..32),
        ) {
            prop_assert_eq!(read_list(&list_text(&processors)), Some(processors));
        }

        #[test]
        fn any_text_is_a_list_or_refused(text in "[0-9,-]{0,12}|.{0,12}") {
            if let Ok(list) = read(&text) {
                prop_assert!((1..=CORES_MAX).contains(&list.count().get()));
                prop_assert_eq!(
                    read(&list.to_string()).map(|again| again.count()),
                    Ok(list.count())
                );
            }
        }
    }
}
