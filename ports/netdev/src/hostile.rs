//! Fuzzing of a hostile virtual machine's frames: any bytes, with any description. A finding is a
//! panic.

use crate::layers::{Layers, PROTOCOL_TCP};
use crate::repair::{Found, Repair};
use crate::segment::{OFFLOAD_BYTES, Offload, SEGMENT_BYTES_MIN, Splitter, complete};

/// A frame as `AF_PACKET` delivers it: 10 bytes of description (`virtio_net_hdr`), then the frame.
///
/// The parts of a split frame must contain the frame's payload once and in order, behind headers of
/// the same length. Completing a checksum must change only the checksum.
///
/// # Panics
/// On a finding.
pub fn described(data: &[u8]) {
    let Some((description, frame)) = data.split_first_chunk::<OFFLOAD_BYTES>() else { return };
    let offload = Offload::parse(description);
    if offload.is_nothing() {
        return;
    }
    let mut bytes = frame.to_vec();
    if !offload.is_split() {
        let _ = complete(&mut bytes, &offload);
        let changed = bytes.iter().zip(frame).filter(|(now, before)| now != before).count();
        assert!(changed <= 4, "{changed} bytes changed");
        return;
    }
    let mut splitter = Splitter::IDLE;
    if splitter.begin(&bytes, &offload).is_err() {
        assert!(splitter.is_done(), "a frame is split that is not understood");
        return;
    }
    let protocol = offload.protocol().expect("what is split has a protocol");
    let layers =
        Layers::find(frame, protocol, offload.transport()).expect("what is split is understood");
    let mut parts = Vec::new();
    while !splitter.is_done() {
        parts.push(splitter.next(&mut bytes).to_vec());
    }
    check(frame, layers.payload, &parts);
}

/// A frame without a description, from an interface whose MTU the first two bytes set.
///
/// # Panics
/// On a finding.
pub fn undescribed(data: &[u8]) {
    let Some((mtu, frame)) = data.split_first_chunk::<2>() else { return };
    let mtu = usize::from(u16::from_be_bytes(*mtu));
    let mut bytes = frame.to_vec();
    let mut repair = Repair::new();
    match repair.look(&mut bytes, mtu) {
        Found::ToSplit => {
            let payload = Layers::find(frame, PROTOCOL_TCP, None)
                .expect("what is split is understood")
                .payload;
            let mut parts = Vec::new();
            while !repair.is_done() {
                parts.push(repair.next_part(&mut bytes).to_vec());
            }
            check(frame, payload, &parts);
        }
        Found::Completed => {
            let changed = bytes.iter().zip(frame).filter(|(now, before)| now != before).count();
            assert!(changed <= 2, "{changed} bytes changed");
            assert_eq!(repair.look(&mut bytes, mtu), Found::Whole, "what is completed is whole");
        }
        Found::Whole | Found::NotSplittable => {
            assert!(bytes == frame, "a frame changed that needed nothing")
        }
    }
}

fn check(frame: &[u8], payload: usize, parts: &[Vec<u8>]) {
    assert!(
        parts.len() <= (frame.len() - payload).div_ceil(SEGMENT_BYTES_MIN),
        "{} parts",
        parts.len()
    );
    let came: Vec<u8> = parts.iter().flat_map(|part| &part[payload..]).copied().collect();
    assert!(came == frame[payload..], "the payload is not what it was");
}
