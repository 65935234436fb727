//! Hostile bytes: the committed corpora of the fuzz targets, every prefix of each entry, and seeded
//! mutations; and the fuzzer's coverage findings, unmutated.
//!
//! `LONGHAUL_FUZZ_ROUNDS` sets the mutations per entry, `LONGHAUL_FUZZ_SEED` the seed. A failure
//! prints both and leaves the offending bytes in a file for the corpus.

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

/// Inputs of a target in one of the two folders, ordered by name.
fn inputs(folder: &str, target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(folder).join(target);
    let Ok(entries) = std::fs::read_dir(&folder) else { return Vec::new() };
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

/// Makes one to four changes: a bit, a byte, a length-like byte, truncation, insertion or
/// duplication.
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

/// Replays with `rounds` mutations of each entry by default.
fn replay(target: &str, rounds: u64) {
    let run = fuzz::target(target).expect("a target");
    let rounds = from_environment("LONGHAUL_FUZZ_ROUNDS", rounds);
    let seed = from_environment("LONGHAUL_FUZZ_SEED", 1);
    let check = |bytes: &[u8], source: &str| {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(bytes))) {
            let path = scratch_file(&format!("{target}-finding"), bytes);
            eprintln!(
                "{target}: {source} panics; put {} into checks/fuzz/corpus/{target}. Again: \
                 LONGHAUL_FUZZ_SEED={seed} LONGHAUL_FUZZ_ROUNDS={rounds} cargo test -p \
                 longhaul-checks --test fuzz_corpus {target}",
                path.display()
            );
            std::panic::resume_unwind(panic);
        }
    };
    for (path, entry) in inputs("found", target) {
        check(&entry, &path.display().to_string());
    }
    let corpus = inputs("corpus", target);
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

/// A test for each target, with the number of mutations per entry.
macro_rules! targets {
    ($($name:ident $rounds:literal)*) => {
        mod replayed {
            $(#[test]
            fn $name() {
                super::replay(stringify!($name), $rounds);
            })*
        }

        #[test]
        fn every_target_is_replayed() {
            let replayed = [$(stringify!($name)),*];
            assert_eq!(fuzz::TARGETS.iter().map(|(name, _)| *name).collect::<Vec<_>>(), replayed);
        }
    };
}

targets! {
    accelerator 200
    announced 2000
    capture 2000
    datagram 2000
    frame 2000
    mad 2000
    management 2000
    memif_control 300
    memif_rings 2000
    nvme_commands 300
    nvme_responses 300
    read_ahead 200
    reliable 2000
    sealed 2000
    segments 300
    segments_described 300
    session 100
    tunnelled 100
    unreliable 2000
}

/// A packet of the sequence targets: opcode by its index in the transport, PSN mode and distance,
/// then the other fields read by `fuzz/device.rs`.
fn step(opcode: u8, psn: (u8, i8), claimed: (u8, u8), payload: u8, syndrome: u8) -> [u8; 14] {
    let (mode, by) = psn;
    [opcode, mode, by as u8, 0, 1, 0, claimed.0, claimed.1, payload, 1, syndrome, 1, 2, 3]
}

/// 256 bytes of payload.
const FULL: u8 = 0xc0;
/// PSNs: the expected one, the oldest unacknowledged one, a distant one.
const NEXT: (u8, i8) = (0, 0);
const UNA: (u8, i8) = (1, 0);
const FAR: (u8, i8) = (4, 3);

/// Sequences that are nearly valid, as a starting point for mutations.
fn sequences(target: &str) -> Vec<(&'static str, Vec<[u8; 14]>)> {
    let plain = |opcode, payload| step(opcode, NEXT, (0, 0), payload, 0);
    let mut all = vec![];
    if target == "datagram" {
        all.extend([
            ("send", vec![plain(0, 100), plain(1, 100)]),
            ("longest", vec![plain(0, FULL), plain(0, FULL), plain(1, 0)]),
            ("too-long", vec![plain(0, 0xff), plain(0, FULL)]),
            ("many", vec![plain(0, 50); 12]),
        ]);
        return all;
    }
    let write = |claimed| step(6, NEXT, (2, claimed), FULL, 0);
    all.extend([
        ("send", vec![plain(0, FULL), plain(1, FULL), plain(2, 88), plain(4, 10), plain(5, 0)]),
        ("send-too-long", vec![plain(0, FULL), plain(1, FULL), plain(1, FULL), plain(2, FULL)]),
        (
            "send-out-of-order",
            vec![plain(1, FULL), plain(0, FULL), plain(0, FULL), plain(2, 9), plain(2, 9)],
        ),
        (
            "write",
            vec![
                write(100),
                plain(8, 100),
                step(10, NEXT, (0, 0), 77, 0),
                step(11, NEXT, (0, 0), 7, 0),
            ],
        ),
        ("write-lies", vec![write(20), plain(7, FULL), plain(7, FULL), plain(8, 21)]),
        ("mixed", vec![write(100), plain(2, 9), plain(0, FULL), plain(8, 100)]),
        ("far", vec![step(4, FAR, (0, 0), 8, 0), step(0, (0, 7), (0, 0), FULL, 0), plain(4, 8)]),
    ]);
    if target == "reliable" {
        let ack = |psn, syndrome| step(17, psn, (0, 0), 0, syndrome);
        let read = |by| step(12, (0, by), (1, 60), 0, 0);
        all.extend([
            ("read", vec![read(0), read(-4), read(-2), step(12, NEXT, (3, 0x80), 0, 0)]),
            (
                "atomics",
                vec![plain(20, 0), plain(19, 0), step(20, (0, -2), (0, 0), 0, 0), plain(19, 0)],
            ),
            ("acks", vec![ack(UNA, 0x1f), ack((2, -1), 0x1f), ack((2, 5), 0x1f), ack(FAR, 0)]),
            ("naks", vec![ack(UNA, 0x60), ack(UNA, 0x21), ack(UNA, 0x60), ack(UNA, 0x63)]),
            (
                "responses",
                vec![
                    ack((1, 2), 0x1f),
                    step(13, UNA, (0, 0), FULL, 0x1f),
                    step(14, UNA, (0, 0), FULL, 0x1f),
                    step(15, UNA, (0, 0), 88, 0x1f),
                    step(18, UNA, (0, 0), 0, 0x1f),
                ],
            ),
            (
                "responses-nobody-asked-for",
                vec![
                    step(13, UNA, (0, 0), FULL, 0x1f),
                    step(16, (2, 0), (0, 0), 0xff, 0x1f),
                    step(18, (2, 9), (0, 0), 0, 0x1f),
                ],
            ),
            ("invalidate", vec![plain(22, 8), step(10, NEXT, (0, 0), 8, 0), plain(21, 8)]),
        ]);
    }
    all
}

/// One of each type with a valid length, one of an unknown type, one of another version, and an
/// unsealed one.
fn sealed_datagrams() -> Vec<(String, Vec<u8>)> {
    let lengths = [200_usize, 32, 48, 48, 140, 80, 16, 16];
    let of = |first: u8, kind: usize| {
        let mut bytes = vec![0x5a; lengths[kind]];
        bytes[..4].copy_from_slice(&[first, (kind as u8) << 4, 0, 0]);
        bytes
    };
    let mut all: Vec<_> = (0..8).map(|kind| (format!("kind-{kind}"), of(0xe1, kind))).collect();
    all.extend([("version-2".to_string(), of(0xe2, 2)), ("clear".to_string(), of(0x16, 4))]);
    all
}

/// Event sequences of a session, each with keys and without.
fn sessions() -> Vec<(String, Vec<u8>)> {
    // Steps to the second box, with the highest bit set; frames from the first one, without it.
    let (send, come, lose, double, late, harm, wait, forge) =
        (0x38, 0xf9, 0x82, 0x83, 0x84, 0x85, 0x06, 0x87);
    let back = |step: u8| step & 0x7f;
    let all: [(&str, &[u8]); 6] = [
        ("lost", &[send, lose, lose, come, wait, 9, send, come, back(come), wait, 200]),
        (
            "doubled",
            &[send, double, double, come, come, wait, 1, double, back(double), back(come), come],
        ),
        ("overtaken", &[send, send, late, 7, late, 9, late, 1, wait, 3, come, come, back(late), 2]),
        ("damaged", &[send, harm, 50, 1, harm, 70, 128, harm, 12, 9, harm, 37, 3, come, wait, 250]),
        (
            "made-up",
            &[
                send, forge, 30, 0x10, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, forge, 4, 0x14, 0, 0, 0,
                come,
            ],
        ),
        (
            "silence",
            &[send, lose, lose, lose, wait, 255, wait, 255, send, wait, 255, come, back(come)],
        ),
    ];
    let of = |keys: u8| {
        move |&(name, steps): &(&str, &[u8])| (format!("{name}-{keys}"), [&[keys], steps].concat())
    };
    all.iter().map(of(0)).chain(all.iter().map(of(1))).collect()
}

/// Forged datagrams: one of each type, with the latest body, and with a body of its own.
fn forgeries() -> Vec<(String, Vec<u8>)> {
    let of = |kind: u8, change: [u8; 8], body: &[u8]| {
        [&[0x80 | kind][..], &change, &[body.len() as u8], body].concat()
    };
    let kinds =
        (0..8).map(|kind| (format!("kind-{kind}"), of(kind, [0, 0, 0, 1, 0, 0, 0, 1], &[0; 64])));
    let others = [
        ("next-frame", of(0, [0, 0, 0, 1, 0, 0, 0, 1], &[])),
        ("far-number", of(0, [0, 0, 0x7f, 0xff, 0, 0, 0x7f, 0xff], &[])),
        ("another-version", of(0, [0x30, 0, 0, 0, 0, 0, 0, 0], &[])),
        ("another-stream", of(2, [0, 0, 0, 1, 1, 1, 0, 0], &[])),
    ];
    kinds.chain(others.map(|(name, bytes)| (name.to_string(), bytes))).collect()
}

/// Writes the part of the corpora that is derived from the builders; the rest are findings, kept
/// unchanged. Run by hand after the formats change: `cargo test -p longhaul-checks --test
/// fuzz_corpus -- --ignored`.
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
    for name in [
        "cm_rc_perftest_write_5000B",
        "cm_rc_reject_no_listener",
        "cm_ud_sidr_udaddy",
        "cm_rc_rping_100B",
    ] {
        let file = std::fs::read(kernel.join(format!("{name}.pcap"))).unwrap();
        let mut number = 0;
        for record in pcap::records(&file) {
            if let Ok(Some((fields, _))) = Fields::read(record.unwrap().data)
                && fields.bth.dest_qp == Qpn::GSI
            {
                std::fs::write(folder.join(format!("mad/{name}-{number}")), fields.payload)
                    .unwrap();
                number += 1;
            }
        }
    }
    let mut rng = SplitMix64::new(7);
    for target in ["reliable", "unreliable", "datagram"] {
        let to = folder.join(target);
        std::fs::create_dir_all(&to).unwrap();
        for (name, steps) in sequences(target) {
            std::fs::write(to.join(name), steps.concat()).unwrap();
        }
        for number in 0..6 {
            let steps = 8 + 4 * number;
            let bytes: Vec<u8> = (0..14 * steps).map(|_| rng.next_u64() as u8).collect();
            std::fs::write(to.join(format!("drawn-{number}")), bytes).unwrap();
        }
    }
    let to = folder.join("management");
    std::fs::create_dir_all(&to).unwrap();
    for name in [
        "cm_rc_perftest_write_5000B",
        "cm_rc_reject_no_listener",
        "cm_ud_sidr_udaddy",
        "cm_rc_rping_100B",
    ] {
        let mads: Vec<_> = (0..)
            .map_while(|n| std::fs::read(folder.join(format!("mad/{name}-{n}"))).ok())
            .collect();
        for (kind, act) in [("accepted", 0), ("rejected", 8), ("destroyed", 0x10), ("late", 4)] {
            let bytes: Vec<u8> = mads
                .iter()
                .flat_map(|mad| std::iter::once(act).chain(mad.iter().copied()))
                .collect();
            std::fs::write(to.join(format!("{name}-{kind}")), bytes).unwrap();
        }
    }
    let built =
        [("sealed", sealed_datagrams()), ("session", sessions()), ("tunnelled", forgeries())];
    for (target, entries) in built {
        let to = folder.join(target);
        std::fs::create_dir_all(&to).unwrap();
        for (name, bytes) in entries {
            std::fs::write(to.join(name), bytes).unwrap();
        }
    }
    let file = capture(&frames.iter().take(4).map(|f| f.build()).collect::<Vec<_>>());
    for (name, piece) in [("whole", 255_u8), ("pieces", 6)] {
        let mut bytes = vec![piece];
        bytes.extend(&file);
        std::fs::write(folder.join(format!("capture/pcap-{name}")), bytes).unwrap();
    }
}
