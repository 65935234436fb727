//! Keys of a migration.

use super::*;
use crate::host::{Migration, Writes};
use crate::scenario::Flow;

fn flow(keys: &str) -> Flow {
    load(&format!("{SHORTEST}test = \"migration\"\n{keys}")).unwrap().scenario.flows.remove(0)
}

#[test]
fn have_defaults() {
    let flow = flow("");
    let idle = Migration {
        setup: Duration::ZERO,
        disk_bytes: 0,
        disk_rate: None,
        memory_bytes: 1 << 30,
        memory_rate: None,
        writes: None,
        downtime_limit: Duration::from_ms(300),
    };
    let timeout = Duration::from_ms(120_000);
    assert_eq!(flow.test, Test::Migration { depth: 128, timeout, migration: idle });
    assert_eq!((flow.op, flow.message_bytes), (Op::Write, 1 << 20));
}

#[test]
fn are_read() {
    let flow = flow(
        "setup = \"1s\"\ndisk = \"10G\"\ndisk_rate = \"1.2G\"\nmemory = \"8G\"\n\
         memory_rate = \"26G\"\nworking_set = \"2G\"\ndirty_rate = \"18G\"\ndirty_pause = \"1s\"\n\
         downtime_limit = \"50ms\"\ntimeout = \"30s\"\nsize = \"256K\"\ntx_depth = 16",
    );
    let rate = BitRate::from_gbps(18).unwrap();
    let migration = Migration {
        setup: Duration::from_ms(1000),
        disk_bytes: 10 << 30,
        disk_rate: BitRate::from_bps(1_200_000_000),
        memory_bytes: 8 << 30,
        memory_rate: BitRate::from_gbps(26),
        writes: Some(Writes { bytes: 2 << 30, rate, pause: Duration::from_ms(1000) }),
        downtime_limit: Duration::from_ms(50),
    };
    let timeout = Duration::from_ms(30_000);
    assert_eq!(flow.test, Test::Migration { depth: 16, timeout, migration });
    assert_eq!(flow.message_bytes, 256 << 10);
}

#[test]
fn of_an_idle_guest_may_say_how_it_would_write() {
    let flow = flow("disk = 0\nworking_set = 0\ndirty_rate = \"18G\"");
    match flow.test {
        Test::Migration { migration, .. } => assert_eq!(migration.writes, None),
        other => panic!("{other:?}"),
    }
}

#[test]
fn that_make_no_sense_are_refused_with_a_cure() {
    for (keys, part) in [
        ("op = \"read\"", "say op = \"write\""),
        ("qps = 2", "take 'qps' out"),
        ("transport = \"uc\"", "take 'transport' out"),
        ("events = \"all\"", "take 'events' out"),
        ("iterations = 7", "take 'iterations' out"),
        ("duration = \"1s\"", "take 'duration' out"),
        ("cq_mod = 2", "take 'cq_mod' out"),
        ("timeout = \"0\"", "give some seconds"),
        ("working_set = \"1M\"", "add 'dirty_rate'"),
        ("dirty_rate = \"1G\"", "add 'working_set'"),
        ("working_set = \"2G\"\ndirty_rate = \"1G\"", "raise 'memory'"),
        ("memory = \"1T\"\nsize = \"4K\"", "raise 'size'"),
        ("memory = 0", "from 1"),
    ] {
        let refusal = load(&format!("{SHORTEST}test = \"migration\"\n{keys}")).unwrap_err();
        assert!(refusal.to_string().contains(part), "{refusal}");
    }
    for test in ["", "test = \"latency\"\n", "test = \"storage\"\nop = \"read\"\n"] {
        let refusal = load(&format!("{SHORTEST}{test}disk_rate = \"1G\"")).unwrap_err();
        assert!(refusal.to_string().contains("add test = \"migration\""), "{refusal}");
    }
}
