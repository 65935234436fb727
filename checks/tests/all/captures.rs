//! Packets of the Linux kernel's rxe: each is decoded, has the ICRC that we compute, and is rebuilt
//! from its fields byte for byte.

use longhaul_checks::packets::Fields;
use longhaul_units::Qpn;
use longhaul_wire::mad::{Mad, Message, Rep, Req};
use longhaul_wire::{Opcode, pcap};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

fn captures() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("captures");
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "pcap"))
        .collect();
    files.sort();
    files
}

/// Calls `each` for every packet of every capture.
fn every_packet(mut each: impl FnMut(&str, usize, &[u8], Fields, bool)) -> usize {
    let mut count = 0;
    for path in captures() {
        let name = path.file_name().unwrap().to_str().unwrap();
        let file = std::fs::read(&path).unwrap();
        for (number, record) in pcap::records(&file).enumerate() {
            let frame = record.unwrap().data;
            let (fields, icrc_is_right) = Fields::read(frame)
                .unwrap_or_else(|e| panic!("{name} frame {number}: {e}"))
                .unwrap_or_else(|| panic!("{name} frame {number} is not RoCEv2"));
            each(name, number, frame, fields, icrc_is_right);
            count += 1;
        }
    }
    count
}

#[test]
fn every_icrc_is_the_one_we_compute() {
    let count = every_packet(|name, number, _, _, right| assert!(right, "{name} frame {number}"));
    assert_eq!(count, 2335);
}

#[test]
fn every_packet_is_rebuilt_from_its_fields() {
    every_packet(|name, number, frame, fields, _| {
        assert_eq!(fields.build(), frame, "{name} frame {number}: {fields:?}");
    });
}

/// Each side of a connection begins with the PSN in the other's REQ or REP.
#[test]
fn the_first_request_of_a_side_has_the_psn_that_its_peer_asked_for() {
    let mut asked = BTreeMap::new();
    let mut begun = 0;
    every_packet(|name, number, _, fields, _| {
        let (from, to) = (fields.path.source_ip, fields.path.destination_ip);
        if number == 0 {
            asked.clear();
        }
        if fields.bth.dest_qp == Qpn::GSI {
            let Ok(mad) = <&Mad>::try_from(fields.payload.as_slice()) else { return };
            if let Message::Req(Req { qpn, starting_psn, .. })
            | Message::Rep(Rep { qpn, starting_psn, .. }) = Message::read(mad).unwrap().1
            {
                asked.insert((from, qpn), starting_psn);
            }
        } else if fields.bth.opcode.is_request()
            && let Some(psn) = asked.remove(&(to, fields.bth.dest_qp))
        {
            assert_eq!(fields.bth.psn, psn, "{name} frame {number}");
            begun += 1;
        }
    });
    assert_eq!(begun, 5, "two of perftest's, one of them used one way, and one of rping's");
}

#[test]
fn one_flipped_bit_under_the_icrc_is_noticed() {
    let mut flipped = 0;
    every_packet(|name, number, frame, fields, _| {
        if number > 3 {
            return;
        }
        let mut damaged = frame.to_vec();
        // BTH byte 4 (FECN, BECN, reserved) may be changed by routers.
        let bth = 14 + 20 + 8;
        for at in bth..frame.len() {
            damaged[at] ^= 0x10;
            if let Ok(Some((_, right))) = Fields::read(&damaged) {
                assert_eq!(right, at == bth + 4, "{name} frame {number} byte {at}: {fields:?}");
                flipped += 1;
            }
            damaged[at] ^= 0x10;
        }
    });
    assert!(flipped > 5000, "{flipped}");
}

#[test]
fn together_they_show_most_of_the_protocol() {
    let mut seen = BTreeSet::new();
    every_packet(|_, _, _, fields, _| {
        seen.insert(fields.bth.opcode.0);
    });
    for opcode in [
        Opcode::RC_SEND_ONLY_IMM,
        Opcode::RC_WRITE_FIRST,
        Opcode::RC_READ_RESPONSE_MIDDLE,
        Opcode::RC_ATOMIC_ACK,
        Opcode::RC_CMP_SWAP,
        Opcode::UC_WRITE_LAST_IMM,
        Opcode::UD_SEND_ONLY,
    ] {
        assert!(seen.contains(&opcode.0), "{opcode}");
    }
    assert!(seen.len() > 30, "{}", seen.len());
}
