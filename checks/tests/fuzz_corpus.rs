//! Hostile bytes: the committed corpora of the fuzz targets, every prefix of each entry, and seeded mutations.
//!
//! `LONGHAUL_FUZZ_ROUNDS` sets the mutations per entry, `LONGHAUL_FUZZ_SEED` the seed. A failure prints both
//! and leaves the offending bytes in a file that belongs into the corpus.

use longhaul_checks::fuzz;
use longhaul_checks::outside::scratch_file;
use longhaul_checks::packets::{Fields, capture, every_kind};
use longhaul_units::{Qpn, Rng, SplitMix64};
use longhaul_wire::pcap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

fn from_environment(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|e| panic!("{name}={text}: {e}")),
        Err(_) => default,
    }
}

fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

/// One to four changes: a bit, a byte, a length-like byte, a cut, bytes put in or doubled.
fn mutate(rng: &mut SplitMix64, entry: &[u8], other: &[u8]) -> Vec<u8> {
    let mut bytes = entry.to_vec();
    for _ in 0..1 + rng.below(4) {
        if bytes.is_empty() {
            bytes.push(rng.next_u64() as u8);
        }
        let at = rng.below(bytes.len() as u64) as usize;
        match rng.below(7) {
            0 | 1 => bytes[at] ^= 1 << rng.below(8),
            2 => bytes[at] = rng.next_u64() as u8,
            3 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][rng.below(5) as usize],
            4 => bytes.truncate(at),
            5 => bytes.insert(at, rng.next_u64() as u8),
            _ => {
                let from = at.min(other.len());
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
        }
    }
    bytes
}

fn replay(target: &str, run: fn(&[u8])) {
    let rounds = from_environment("LONGHAUL_FUZZ_ROUNDS", 2000);
    let seed = from_environment("LONGHAUL_FUZZ_SEED", 1);
    let check = |bytes: &[u8], source: &str| {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(bytes))) {
            let path = scratch_file(&format!("{target}-finding"), bytes);
            eprintln!(
                "{target}: {source} panics; put {} into checks/fuzz/corpus/{target}. Again: \
                 LONGHAUL_FUZZ_SEED={seed} LONGHAUL_FUZZ_ROUNDS={rounds} cargo test -p longhaul-checks \
                 --test fuzz_corpus {target}",
                path.display()
            );
            std::panic::resume_unwind(panic);
        }
    };
    let corpus = corpus(target);
    assert!(corpus.len() >= 10, "the corpus of {target} has {} entries", corpus.len());
    let mut rng = SplitMix64::new(seed);
    for (path, entry) in &corpus {
        let name = path.display().to_string();
        for end in 0..=entry.len() {
            check(&entry[..end], &name);
        }
        for round in 0..rounds {
            let other = &corpus[rng.below(corpus.len() as u64) as usize].1;
            check(&mutate(&mut rng, entry, other), &format!("mutation {round} of {name}"));
        }
    }
    for _ in 0..rounds * 10 {
        let bytes: Vec<u8> = (0..rng.below(200)).map(|_| rng.next_u64() as u8).collect();
        check(&bytes, "noise");
    }
}

#[test]
fn frame() {
    replay("frame", fuzz::frame);
}

#[test]
fn capture_file() {
    replay("capture", fuzz::capture);
}

#[test]
fn mad() {
    replay("mad", fuzz::mad);
}

/// Writes the part of the corpora that follows from the builders; the rest are findings, kept as they are.
/// Run by hand after the formats change: `cargo test -p longhaul-checks --test fuzz_corpus -- --ignored`.
#[test]
#[ignore = "writes into the source tree"]
fn write_seeds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let frames: Vec<_> = every_kind().into_iter().filter(|f| f.payload.len() <= 64).collect();
    for (number, fields) in frames.iter().enumerate().filter(|(n, _)| n % 3 == 0) {
        let name = format!("frame/built-{number:03}-opcode-{:02x}", fields.bth.opcode.0);
        std::fs::write(folder.join(name), fields.build()).unwrap();
    }
    let kernel = Path::new(env!("CARGO_MANIFEST_DIR")).join("captures");
    for name in
        ["cm_rc_perftest_write_5000B", "cm_rc_reject_no_listener", "cm_ud_sidr_udaddy", "cm_rc_rping_100B"]
    {
        let file = std::fs::read(kernel.join(format!("{name}.pcap"))).unwrap();
        let mut number = 0;
        for record in pcap::records(&file) {
            if let Ok(Some((fields, _))) = Fields::read(record.unwrap().data)
                && fields.bth.dest_qp == Qpn::GSI
            {
                std::fs::write(folder.join(format!("mad/{name}-{number}")), fields.payload).unwrap();
                number += 1;
            }
        }
    }
    let file = capture(&frames.iter().take(4).map(|f| f.build()).collect::<Vec<_>>());
    for (name, piece) in [("whole", 255_u8), ("pieces", 6)] {
        let mut bytes = vec![piece];
        bytes.extend(&file);
        std::fs::write(folder.join(format!("capture/pcap-{name}")), bytes).unwrap();
    }
}
