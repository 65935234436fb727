//! Captures at an end of a link.
//!
//! Different parts of the network record departures and arrivals at an end, each in order; the two
//! files are merged after the run.

use super::Failure;
use crate::problem::Problem;
use longhaul_sim::file::LinkPlan;
use longhaul_sim::{Recorder, Scenario};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// A file's header, and the one in front of each frame.
const FILE_HEADER_LEN: usize = 24;
const FRAME_HEADER_LEN: usize = 16;

/// A capture point and its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    cable: usize,
    end: usize,
    path: PathBuf,
}

impl Point {
    /// All captures requested by the command line and the file.
    pub fn all(
        given: &[String],
        directory: Option<&Path>,
        scenario: &Scenario,
        links: &[LinkPlan],
    ) -> Result<Vec<Self>, Failure> {
        let mut points = Vec::new();
        for text in given {
            points.push(Point::parse(text, scenario, links)?);
        }
        let station = |cable: usize, end: usize| {
            let (station, _): (usize, usize) = scenario.cables[cable].ends[end];
            &*scenario.stations[station].name
        };
        for (cable, link) in links.iter().enumerate() {
            if let Some(file) = &link.record {
                points.push(Point { cable, end: link.first, path: file.into() });
            }
            for end in if directory.is_some() { vec![0, 1] } else { vec![] } {
                let name = format!("{}@{}.pcap", link.name, station(cable, end));
                let path = directory.unwrap_or(Path::new("")).join(name);
                points.push(Point { cable, end, path });
            }
        }
        let mut paths = BTreeSet::new();
        match points.iter().find(|point| !paths.insert(&point.path)) {
            Some(point) => Err(Failure::value(format!(
                "two captures go to {}: give each its own file",
                point.path.display()
            ))),
            None => Ok(points),
        }
    }

    /// Reads `LINK=FILE` or `LINK@STATION=FILE`.
    fn parse(text: &str, scenario: &Scenario, links: &[LinkPlan]) -> Result<Self, Failure> {
        let wrong = |cause: String| Failure::value(format!("--pcap {text}: {cause}"));
        let Some((segment, path)) = text.split_once('=').filter(|(_, path)| !path.is_empty())
        else {
            return Err(wrong("write LINK=FILE or LINK@STATION=FILE".into()));
        };
        let (name, station) =
            segment.split_once('@').map_or((segment, None), |(name, at)| (name, Some(at)));
        let Some(cable) = links.iter().position(|link| link.name == name) else {
            let names = links.iter().map(|link| &*link.name).collect::<Vec<_>>().join(", ");
            return Err(wrong(format!("no link is called '{name}': the links are {names}")));
        };
        let stations =
            scenario.cables[cable].ends.map(|(station, _)| &*scenario.stations[station].name);
        let end = match station {
            None => links[cable].first,
            Some(station) => {
                stations.iter().position(|known| *known == station).ok_or_else(|| {
                    wrong(format!(
                        "link '{name}' does not end at '{station}', but at {} and {}",
                        stations[0], stations[1]
                    ))
                })?
            }
        };
        Ok(Point { cable, end, path: path.into() })
    }
}

/// Captures in progress.
pub struct Captures {
    captures: Vec<Capture>,
}

struct Capture {
    point: Point,
    /// Departures and arrivals.
    spools: [Spool; 2],
    recorders: [Option<Recorder>; 2],
}

struct Spool {
    path: PathBuf,
    fault: Fault,
}

type Fault = Arc<Mutex<Option<io::Error>>>;

/// Writes, and keeps the first error.
struct Sink {
    out: BufWriter<File>,
    fault: Fault,
}

impl Sink {
    fn kept<T>(&self, result: io::Result<T>) -> io::Result<T> {
        result.map_err(|error| {
            let copy = io::Error::new(error.kind(), error.to_string());
            self.fault.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            copy
        })
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let result = self.out.write(bytes);
        self.kept(result)
    }

    fn flush(&mut self) -> io::Result<()> {
        let result = self.out.flush();
        self.kept(result)
    }
}

impl Captures {
    /// Creates the files.
    pub fn create(points: Vec<Point>, snap_len: u32) -> Result<Self, Problem> {
        let mut captures = Vec::new();
        for point in points {
            let io = |e| Problem::io("write", &point.path, &e);
            File::create(&point.path).map_err(io)?;
            let mut made = Vec::new();
            for part in ["leaving", "arriving"] {
                let mut path = point.path.clone().into_os_string();
                path.push(format!(".{part}"));
                let path = PathBuf::from(path);
                let fault = Fault::default();
                let file = File::create(&path).map_err(|e| Problem::io("write", &path, &e))?;
                let sink =
                    Sink { out: BufWriter::with_capacity(1 << 18, file), fault: fault.clone() };
                let recorder = Recorder::new(Box::new(sink), snap_len).map_err(io)?;
                made.push((Spool { path, fault }, recorder));
            }
            let [(leaving, leaves), (arriving, arrives)] =
                <[_; 2]>::try_from(made).unwrap_or_else(|_| unreachable!("two made"));
            let recorders = [Some(leaves), Some(arrives.at_arrival())];
            captures.push(Capture { point, spools: [leaving, arriving], recorders });
        }
        Ok(Captures { captures })
    }

    /// Returns the recorders of frames sent by the end `end` of a cable.
    pub fn recorders(&mut self, cable: usize, end: usize) -> Vec<Recorder> {
        let of_cable = self.captures.iter_mut().filter(|capture| capture.point.cable == cable);
        of_cable
            .filter_map(|capture| capture.recorders[usize::from(capture.point.end != end)].take())
            .collect()
    }

    /// Merges the files.
    pub fn finish(self) -> Result<(), Problem> {
        let mut failed = None;
        for Capture { point, spools, .. } in self.captures {
            let fault = spools.iter().find_map(|spool| {
                spool.fault.lock().unwrap_or_else(PoisonError::into_inner).take()
            });
            let merged = match fault {
                Some(error) => Err(error),
                // A departure at the time of an arrival follows from it.
                None => merge([&spools[1].path, &spools[0].path], &point.path),
            };
            for spool in &spools {
                // A remaining temporary file is harmless.
                let _ = std::fs::remove_file(&spool.path);
            }
            if let Err(error) = merged {
                failed.get_or_insert_with(|| Problem::io("record to", &point.path, &error));
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

/// Merges two captures in the order of time; at equal times the first has priority.
fn merge(parts: [&Path; 2], path: &Path) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 18, File::create(path)?);
    let mut inputs = Vec::new();
    for part in parts {
        let mut input = BufReader::with_capacity(1 << 18, File::open(part)?);
        let mut header = [0; FILE_HEADER_LEN];
        input.read_exact(&mut header)?;
        if inputs.is_empty() {
            out.write_all(&header)?;
        }
        let mut frames = Frames { input, next: None };
        frames.advance()?;
        inputs.push(frames);
    }
    while let Some(earliest) = inputs
        .iter_mut()
        .filter(|frames| frames.next.is_some())
        .min_by_key(|frames| frames.next.as_ref().map(|(at, _)| *at))
    {
        if let Some((_, bytes)) = &earliest.next {
            out.write_all(bytes)?;
        }
        earliest.advance()?;
    }
    out.flush()
}

/// Frames of a capture, with their headers.
struct Frames {
    input: BufReader<File>,
    next: Option<((u32, u32), Vec<u8>)>,
}

impl Frames {
    fn advance(&mut self) -> io::Result<()> {
        let mut bytes = self.next.take().map_or_else(Vec::new, |(_, bytes)| bytes);
        bytes.resize(FRAME_HEADER_LEN, 0);
        // A capture ends between frames, because recorders write whole ones.
        if self.input.read(&mut bytes[..1])? == 0 {
            return Ok(());
        }
        self.input.read_exact(&mut bytes[1..])?;
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let (time, len) = ((word(0), word(4)), word(8) as usize);
        bytes.resize(FRAME_HEADER_LEN + len, 0);
        self.input.read_exact(&mut bytes[FRAME_HEADER_LEN..])?;
        self.next = Some((time, bytes));
        Ok(())
    }
}
