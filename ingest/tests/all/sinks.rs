//! Files of sinks, read back.

use crate::transfer::{LIMIT, devices, send, settings, station};
use longhaul_ingest::pattern;
use longhaul_ingest::receiver::Receiver;
use longhaul_ingest::ring::Fate;
use longhaul_ingest::sender::Station;
use longhaul_ingest::settings::Settings;
use longhaul_ingest::sink::{Dada, Guppi, Hdf5, Header, Sink, SinkError, Value};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const SLOTS: usize = 64;
const BYTES: usize = 5000;

/// A folder that is removed.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("longhaul-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn header(channels: i64) -> Header {
    Header(BTreeMap::from([
        ("OBSNCHAN".to_owned(), Value::Integer(channels)),
        ("OBSFREQ".to_owned(), Value::Real(1420.0)),
        ("TBIN".to_owned(), Value::Real(1e-6)),
        ("SRC_NAME".to_owned(), Value::Text("B0329+54".to_owned())),
    ]))
}

/// Sends `windows` windows with gaps into `sink`. Returns the fates of each window.
fn fill(sink: &mut dyn Sink, windows: u64) -> Vec<Vec<Fate>> {
    fill_from(sink, 0, windows, |_| true)
}

/// The same from window `first` on; the sink takes those that are `wanted`.
fn fill_from(
    sink: &mut dyn Sink,
    first: u64,
    windows: u64,
    wanted: impl Fn(u64) -> bool,
) -> Vec<Vec<Fate>> {
    let (a, b) = devices();
    let receiver = Receiver::start(b, Settings { regions: 1024, ..settings() }).unwrap();
    let first_window = Some(first);
    let station = Station { gap: 0.1, windows: Some(windows), first_window, ..station() };
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| send(&a, &receiver, station).unwrap());
        let fates = (0..windows).map(|_| {
            let chunk = receiver.next(LIMIT).expect("a chunk");
            if wanted(chunk.chunk_id()) {
                sink.take(&chunk).unwrap();
            }
            let fates = chunk.fates().to_vec();
            assert_eq!(chunk.release(), 0);
            fates
        });
        let fates = fates.collect();
        sink.finish().unwrap();
        sender.join().unwrap();
        fates
    })
}

/// Whether these are the bytes of a message with this fate.
fn is_right(bytes: &[u8], window: u64, slot: usize, fate: Fate) -> bool {
    match fate {
        Fate::Present => pattern::matches(bytes, 0, window, slot as u32),
        _ => bytes.iter().all(|byte| *byte == 0),
    }
}

/// Cards of the header at `at`, and where the block begins.
fn cards(file: &[u8], mut at: usize) -> (BTreeMap<String, String>, usize) {
    let mut cards = BTreeMap::new();
    loop {
        let card = str::from_utf8(&file[at..at + 80]).unwrap();
        at += 80;
        if card.trim_end() == "END" {
            break;
        }
        let (key, value) = card.split_once("= ").unwrap();
        let value = value.trim().trim_matches('\'').trim_end();
        cards.insert(key.trim_end().to_owned(), value.to_owned());
    }
    let at = if cards["DIRECTIO"] == "1" { at.next_multiple_of(512) } else { at };
    (cards, at)
}

#[test]
fn guppi_blocks_have_channels_in_order_and_say_what_is_missing() {
    let folder = Folder::new("guppi");
    let mut sink = Guppi::create(&folder.0, header(8), settings().shape()).unwrap();
    let windows = fill(&mut sink, 130);
    let mut before = (0, 0);
    for (name, first, last) in [("stream0.0000.raw", 0, 128), ("stream0.0001.raw", 128, 130)] {
        let file = fs::read(folder.0.join(name)).unwrap();
        let mut at = 0;
        for (window, fates) in windows.iter().enumerate().take(last).skip(first) {
            let (cards, begin) = cards(&file, at);
            let number = |key: &str| cards[key].parse::<usize>().unwrap();
            let missing = fates.iter().filter(|fate| **fate != Fate::Present).count();
            assert_eq!(number("BLOCSIZE"), SLOTS * BYTES);
            assert_eq!((number("PKTSIZE"), number("PKTIDX")), (BYTES, window * SLOTS));
            assert_eq!((number("NPKT"), number("NDROP")), (SLOTS - missing, missing));
            before = (before.0 + missing, before.1 + SLOTS);
            let total = before.0 as f64 / before.1 as f64;
            assert_eq!(cards["DROPTOT"].parse::<f64>().unwrap(), total);
            assert_eq!((&*cards["BACKEND"], &*cards["SRC_NAME"]), ("GUPPI", "B0329+54"));
            assert_eq!((&*cards["OBSFREQ"], &*cards["TBIN"]), ("1420.0", "1.0E-6"));
            for (place, message) in file[begin..begin + SLOTS * BYTES].chunks(BYTES).enumerate() {
                let slot = place % 8 * 8 + place / 8;
                assert!(is_right(message, window as u64, slot, fates[slot]), "{window} {slot}");
            }
            at = begin + SLOTS * BYTES;
        }
        assert_eq!(at, file.len());
    }
    let index = fs::read_to_string(folder.0.join("stream0.index.jsonl")).unwrap();
    let last: serde_json::Value = serde_json::from_str(index.lines().last().unwrap()).unwrap();
    assert_eq!((index.lines().count(), &last["file"]), (130, &"stream0.0001.raw".into()));
}

#[test]
fn dada_files_keep_their_places_whatever_is_missing() {
    let folder = Folder::new("dada");
    let mut sink = Dada::create(&folder.0, header(8), settings().shape()).unwrap();
    let windows = fill_from(&mut sink, 40, 130, |window| window % 50 != 0);
    let key = |file: &[u8], key: &str| {
        let head = str::from_utf8(&file[..4096]).unwrap().trim_end_matches('\0').to_owned();
        let value = |line: &str| Some(line.strip_prefix(key)?.strip_prefix(' ')?.to_owned());
        head.lines().find_map(value).unwrap_or_else(|| panic!("{key}: {head}"))
    };
    for (number, (first, last)) in [(0, 128), (128, 130)].into_iter().enumerate() {
        let name = format!("stream0.{number:04}.dada");
        let file = fs::read(folder.0.join(&name)).unwrap();
        assert_eq!((key(&file, "FILE_NAME"), key(&file, "HDR_SIZE")), (name, "4096".into()));
        assert_eq!(key(&file, "FILE_SIZE"), (128 * SLOTS * BYTES).to_string());
        assert_eq!(key(&file, "OBS_OFFSET"), (first * SLOTS * BYTES).to_string());
        assert_eq!((key(&file, "OBSFREQ"), key(&file, "OBSNCHAN")), ("1420.0".into(), "8".into()));
        assert_eq!(file.len(), 4096 + (last - first) * SLOTS * BYTES);
        for (place, message) in file[4096..].chunks(BYTES).enumerate() {
            let (window, slot) = (first + place / SLOTS, place % SLOTS);
            let is_skipped = (40 + window) % 50 == 0;
            let fate = if is_skipped { Fate::Lost } else { windows[window][slot] };
            assert!(is_right(message, 40 + window as u64, slot, fate), "{window} {slot}");
        }
    }
    let index = fs::read_to_string(folder.0.join("stream0.index.jsonl")).unwrap();
    assert_eq!(index.lines().count(), 127);
}

#[test]
fn an_hdf5_file_has_data_fates_and_times() {
    let folder = Folder::new("hdf5");
    let path = folder.0.join("x.h5");
    let mut sink = Hdf5::create(&path, &header(8), settings().shape()).unwrap();
    let windows = fill(&mut sink, 20);
    drop(sink);
    let file = rust_hdf5::H5File::open(&path).unwrap();
    let data = file.dataset("data").unwrap();
    assert_eq!(data.shape(), [20, 1, SLOTS, BYTES]);
    let fates = file.dataset("fates").unwrap().read_raw::<u8>().unwrap();
    let expected: Vec<u8> = windows.iter().flatten().map(|fate| *fate as u8).collect();
    assert_eq!(fates, expected);
    for (row, fates) in windows.iter().enumerate() {
        let window = data.read_slice::<u8>(&[row, 0, 0, 0], &[1, 1, SLOTS, BYTES]).unwrap();
        for (slot, message) in window.chunks(BYTES).enumerate() {
            assert!(is_right(message, row as u64, slot, fates[slot]), "{row} {slot}");
        }
    }
    let numbers = file.dataset("window").unwrap().read_raw::<u64>().unwrap();
    assert_eq!(numbers, (0..20).collect::<Vec<_>>());
    let times = file.dataset("first_arrival").unwrap().read_raw::<f64>().unwrap();
    assert!(times.len() == 20 && times.is_sorted() && times[0] > 1e9);
    assert_eq!(file.attr_string("SRC_NAME").unwrap(), "B0329+54");
}

fn refusal<T>(sink: Result<T, SinkError>) -> String {
    sink.err().expect("a refusal").to_string()
}

#[test]
fn what_a_format_cannot_hold_is_refused_with_a_sentence() {
    let folder = Folder::new("refused");
    let shape = settings().shape();
    let create = |header| refusal(Guppi::create(&folder.0, header, shape));
    assert!(create(header(7)).contains("cannot be divided into OBSNCHAN = 7 channels"));
    let with = |key: &str, value| Header(BTreeMap::from([(key.to_owned(), value)]));
    assert!(create(with("PKTIDX", Value::Integer(1))).contains("the sink sets it"));
    assert!(create(with("NPOL", Value::Integer(3))).contains("NPOL x NBITS = 24 bits"));
    assert!(create(with("NBITS", Value::Text("8".into()))).contains("an integer from 1 to 16"));
    let long = Header((0..99).map(|n| (format!("K{n}"), Value::Text("x".repeat(60)))).collect());
    assert!(refusal(Dada::create(&folder.0, long, shape)).contains("4096 bytes of DADA"));
    let large = longhaul_ingest::layout::Shape { message_bytes: 1 << 30, ..shape };
    let path = folder.0.join("x.h5");
    assert!(refusal(Hdf5::create(&path, &Header::default(), large)).contains("4 GiB or more"));
    let nowhere = Path::new("/dev/null/x.h5");
    assert!(refusal(Hdf5::create(nowhere, &Header::default(), shape)).contains("/dev/null/x.h5"));
}
