//! Senders without a session: queue pairs of a device that are told what a file says.

use crate::transfer::{LIMIT, devices, settings};
use longhaul_ingest::device::software::Software;
use longhaul_ingest::device::{Device, Endpoint, Pair, PairSettings, Path, Transport, Write};
use longhaul_ingest::memory::Memory;
use longhaul_ingest::receiver::Receiver;
use longhaul_ingest::ring::Fate;
use longhaul_ingest::session;
use longhaul_ingest::settings::{Settings, StaticSender};
use serde_json::Value;
use std::sync::Arc;

const SLOTS: u64 = 4;
const BYTES: u64 = 5000;

fn sender(device: &Software, queue_pairs: Vec<Endpoint>) -> StaticSender {
    let address = device.address();
    StaticSender { stream: 1, address, path_mtu: 1024, first_window: 3, queue_pairs }
}

/// Such senders never end: silence closes their last windows.
fn settings_of(senders: Vec<StaticSender>) -> Settings {
    Settings { streams: 2, senders, idle_ms: 5000, ..settings() }
}

#[test]
fn a_sender_that_reads_the_file_alone_is_received_and_what_it_omits_is_unaccounted() {
    let (a, b) = devices();
    let completions = a.completions(64).unwrap();
    let wanted = PairSettings { transport: Transport::Uc, send_depth: 32, receive_depth: 1 };
    let pairs: Vec<_> = (0..2).map(|_| a.pair(&completions, &wanted, None).unwrap()).collect();
    let ends = pairs.iter().map(|pair| Endpoint { qpn: Pair::qpn(pair), psn: 77 }).collect();
    let settings = Settings { slots: SLOTS as u32, ..settings_of(vec![sender(&a, ends)]) };
    let receiver = Receiver::start(b, settings).unwrap();
    let streams = receiver.static_streams().to_vec();
    let line = session::to_line(&session::ToHardware::Static(streams)).unwrap();

    // The sender knows the text alone.
    let file: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(file["longhaul_ingest"], 1);
    let told = &file["static"][0];
    let number = |value: &Value| value.as_u64().unwrap();
    assert_eq!((number(&told["stream"]), number(&told["udp_port"])), (1, 4791));
    assert_eq!(
        (&told["gid"], &told["mac"]),
        (&"::ffff:10.77.0.1".into(), &"02:00:0a:4d:00:01".into())
    );
    assert_eq!((number(&told["slots"]), number(&told["message_bytes"])), (SLOTS, BYTES));
    let path = Path {
        address: told["address"].as_str().unwrap().parse().unwrap(),
        mtu: number(&told["path_mtu"]) as u32,
    };
    assert_eq!(path.mtu, 1024);
    for (pair, end) in pairs.iter().zip(told["queue_pairs"].as_array().unwrap()) {
        let peer = Endpoint { qpn: number(&end["qpn"]) as u32, psn: number(&end["psn"]) as u32 };
        Pair::connect(pair, 77, peer, path).unwrap();
    }
    let memory = Arc::new(Memory::allocate(BYTES as usize));
    memory.write(0, &[7; BYTES as usize]);
    let registration = a.register(&memory).unwrap();
    let regions = told["regions"].as_array().unwrap();
    let first = number(&told["first_window"]);
    for window in first..first + 5 {
        for slot in (0..SLOTS).filter(|slot| (window, *slot) != (4, 2)) {
            let region = &regions[window as usize % regions.len()];
            let immediate = 1 << 24 | (window as u32 & 0xfff) << 12 | slot as u32;
            let write = Write {
                tag: 0,
                offset: 0,
                bytes: BYTES as u32,
                remote_address: number(&region["address"]) + slot * BYTES,
                rkey: number(&region["rkey"]) as u32,
                immediate: immediate.to_be_bytes(),
                signaled: false,
                solicited: false,
            };
            pairs[slot as usize % 2].post_writes(&registration, &[write]).unwrap();
        }
    }

    let mut message = vec![0; BYTES as usize];
    for window in first..first + 5 {
        let chunk = receiver.next(LIMIT).expect("a chunk");
        assert_eq!((chunk.chunk_id(), chunk.stream_id()), (window, 1));
        for (slot, fate) in chunk.fates().iter().enumerate() {
            let expected = if (window, slot) == (4, 2) { Fate::Unaccounted } else { Fate::Present };
            assert_eq!(*fate, expected, "{window} {slot}");
            if *fate == Fate::Present {
                chunk.read(slot, &mut message);
                assert!(message.iter().all(|byte| *byte == 7));
            }
        }
    }
    assert_eq!(receiver.statistics().sessions, 1);
}

#[test]
fn senders_that_do_not_fit_are_named() {
    let end = Endpoint { qpn: 17, psn: 0 };
    for (change, text) in [
        ((|s| s[0].stream = 2) as fn(&mut Vec<StaticSender>), "stream 2 is unknown"),
        (|s| s[0].queue_pairs.clear(), "0 queue pairs: from 1 to"),
        (|s| s[0].queue_pairs[0].qpn = 1 << 24, "more than 24 bits"),
        (|s| s[0].path_mtu = 9000, "path MTU of 9000"),
        (|s| s.extend_from_within(..), "has a sender already"),
    ] {
        let (a, b) = devices();
        let mut senders = vec![sender(&a, vec![end])];
        change(&mut senders);
        let said = Receiver::start(b, settings_of(senders)).err().expect("a refusal").to_string();
        assert!(said.contains(text) && said.contains("the configuration's sender"), "{said}");
    }
}
