//! Keys of UC, shared receive queues, events and shares.

use super::*;
use crate::scenario::{Events, Flow, Transport};

fn path(path: &str, flow: &str) -> String {
    format!("[path]\ndistance = \"1km\"\n{path}\n[[flow]]\n{flow}\n")
}

fn flow(keys: &str) -> Flow {
    load(&path("", keys)).unwrap().scenario.flows.remove(0)
}

#[test]
fn are_reliable_and_polled_unless_told() {
    let flow = flow("op = \"write\"");
    assert_eq!((flow.transport, flow.events, flow.dscp), (Transport::Rc, Events::Off, 26));
    let loaded = load(&path("", "")).unwrap();
    assert_eq!(loaded.scenario.warmup, Duration::ZERO);
    match &loaded.scenario.stations[1].kind {
        StationKind::Host(nic) => assert_eq!((nic.srq_depth, nic.egress_rate_bps), (0, 0)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn are_read() {
    let flow = flow(
        "op = \"write_imm\"\ntransport = \"uc\"\nevents = \"solicited\"\ndscp = 8\npost_list = 100",
    );
    assert_eq!((flow.transport, flow.events, flow.dscp), (Transport::Uc, Events::Solicited, 8));
    let text = path("srq = 20_000\negress_rate = \"23G\"", "op = \"write_imm\"");
    let loaded = load(&format!("warmup = \"2ms\"\n{text}")).unwrap();
    assert_eq!(loaded.scenario.warmup, Duration::from_ms(2));
    match &loaded.scenario.stations[0].kind {
        StationKind::Host(nic) => {
            assert_eq!((nic.srq_depth, nic.egress_rate_bps), (20_000, 23_000_000_000));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn that_make_no_sense_are_refused() {
    for (on_path, keys, part) in [
        ("", "op = \"read\"\ntransport = \"uc\"", "\"uc\" has no read"),
        ("", "transport = \"uc\"\ntest = \"latency\"", "waits forever"),
        ("", "transport = \"uc\"\nconnect = \"cm\"", "out of band"),
        ("", "events = \"all\"\ntest = \"latency\"", "take 'events' out"),
        ("", "events = \"all\"\nconnect = \"cm\"", "take 'connect' or 'events' out"),
        ("srq = 100", "op = \"send\"", "no memory for SENDs"),
    ] {
        let refusal = load(&path(on_path, keys)).unwrap_err().to_string();
        assert!(refusal.contains(part), "{refusal}");
    }
    for (keys, part) in [
        ("op = \"write\"\ntransport = \"ud\"", "transport in [[flow]]"),
        ("events = \"some\"", "events in [[flow]]"),
        ("dscp = 64", "dscp in [[flow]]"),
    ] {
        assert!(load(&path("", keys)).unwrap_err().to_string().contains(part), "{keys}");
    }
}
