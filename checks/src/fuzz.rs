//! The fuzz targets. A finding is a panic.
//!
//! `fuzz/` runs these under libFuzzer (`cargo xtask fuzz`); `tests/fuzz_corpus.rs` replays the
//! committed corpora, and mutations of them, in every ordinary test run.

mod accelerator;
mod device;
mod nvme;
mod read_ahead;
mod seal;
mod session;

pub use accelerator::accelerator;
pub use device::{datagram, management, reliable, unreliable};
pub use nvme::{nvme_commands, nvme_responses};
pub use read_ahead::{announced, read_ahead};
pub use seal::sealed;
pub use session::{session, tunnelled};

use crate::packets::Fields;
use longhaul_node::{Frame, FramePool};
use longhaul_wire::mad::{MAD_LEN, Mad, Message};
use longhaul_wire::pcap::{Decoder, Step};
use longhaul_wire::{Head, Packet};

/// A target's function, applied to one input.
pub type Target = fn(&[u8]);

/// Every target by name, which is also that of its corpus in `fuzz/corpus/`.
pub const TARGETS: &[(&str, Target)] = &[
    ("accelerator", accelerator),
    ("announced", announced),
    ("capture", capture),
    ("datagram", datagram),
    ("frame", frame),
    ("mad", mad),
    ("management", management),
    ("memif_control", longhaul_memif::hostile::control),
    ("memif_rings", longhaul_memif::hostile::rings),
    ("nvme_commands", nvme_commands),
    ("nvme_responses", nvme_responses),
    ("read_ahead", read_ahead),
    ("reliable", reliable),
    ("sealed", sealed),
    ("segments", longhaul_netdev::hostile::undescribed),
    ("segments_described", longhaul_netdev::hostile::described),
    ("session", session),
    ("tunnelled", tunnelled),
    ("unreliable", unreliable),
];

/// The target with this name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().find(|(of, _)| *of == name).map(|(_, run)| *run)
}

/// One frame from a port: split, parse, check, hold, write out.
pub fn frame(data: &[u8]) {
    let head = Head::copy_of(data);
    let Ok(frame) = Frame::received(&head, data) else { return };
    assert!(frame.len() <= data.len(), "longer than what came");
    let mut out = vec![0; frame.len()];
    frame.write_to(&mut out);
    assert_eq!(out, data[..out.len()], "a received frame is passed on unchanged");
    let icrc_is_right = frame.icrc_is_right();
    let held = FramePool::new().hold(&frame);
    assert_eq!(held.as_frame().len(), frame.len());
    assert_eq!(held.as_frame().icrc_is_right(), icrc_is_right);
    if let Ok(Some(packet)) = Packet::parse(frame.head) {
        let _ =
            (packet.path().reversed(), packet.bth(), packet.reth(), packet.aeth(), packet.deth());
        let _ =
            (packet.atomic_eth(), packet.atomic_ack_eth(), packet.immediate(), packet.invalidate());
    }
    if let Ok(Some((fields, right))) = Fields::read(data) {
        assert_eq!(right, icrc_is_right);
        let again = Fields::read(&fields.build());
        assert!(matches!(again, Ok(Some((_, true)))), "what we build is sound: {again:?}");
    }
}

/// One management datagram on QP1, truncated or padded with zeros to 256 bytes.
pub fn mad(data: &[u8]) {
    let mut mad: Mad = [0; MAD_LEN];
    let len = data.len().min(MAD_LEN);
    mad[..len].copy_from_slice(&data[..len]);
    let Ok((header, message)) = Message::read(&mad) else { return };
    let mut again: Mad = [0xaa; MAD_LEN];
    message.write(&header, &mut again);
    assert_eq!(Message::read(&again), Ok((header, message)), "what we write is read back");
}

/// A capture file in pieces, whose size is the first byte.
pub fn capture(data: &[u8]) {
    let Some((&piece, file)) = data.split_first() else { return };
    let piece = usize::from(piece) + 1;
    let mut decoder = Decoder::new();
    let (mut from, mut to) = (0, 0);
    loop {
        match decoder.step(&file[from..to]) {
            Ok(Step::NeedMore { bytes }) => {
                assert!(bytes > to - from, "asks for what it has");
                if to == file.len() {
                    let _ = decoder.finish(&file[from..]);
                    return;
                }
                to = (to + piece).min(file.len());
            }
            Ok(Step::Skip { consumed }) => from += consumed,
            Ok(Step::Packet { consumed, record }) => {
                assert!(consumed > record.data.len());
                from += consumed;
                frame(record.data);
            }
            Err(_) => return,
        }
    }
}
