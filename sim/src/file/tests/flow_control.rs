//! Keys of priority-based flow control.

use super::*;
use longhaul_switch::{PfcConfig, SwitchConfig};

/// Two hosts on a switch, one of them 10 us away; the switch's keys.
fn text(switch: &str) -> String {
    format!(
        "[[switch]]\nname = \"leaf\"\n{switch}\n[[host]]\nname = \"a\"\nnic = \"ideal\"\n[[host]]\n\
         name = \"b\"\n\
         nic = \"ideal\"\n[[link]]\nbetween = [\"a\", \"leaf\"]\nrate = \"100G\"\n[[link]]\n\
         between = [\"leaf\", \"b\"]\nrate = \"10G\"\ndelay = \"10us\"\n[[flow]]\n"
    )
}

fn switch(text: &str) -> SwitchConfig {
    let loaded = load(text).unwrap();
    match &loaded.scenario.stations.iter().find(|station| station.name == "leaf").unwrap().kind {
        StationKind::Switch(config) => config.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn is_off_unless_asked_for() {
    assert_eq!(switch(&text("")).pfc, None);
    assert_eq!(switch(&text("pfc = \"off\"")).pfc, None);
}

#[test]
fn follows_from_the_links() {
    let PfcConfig { priority, xoff_bytes, xon_bytes, ports, shared, ets_share } =
        switch(&text("pfc = \"on\"")).pfc.unwrap();
    assert_eq!((shared, ets_share), (None, None));
    assert_eq!(priority, 3);
    let rates: Vec<u64> = ports.iter().map(|port| port.rate.as_bps()).collect();
    assert_eq!(rates, [100_000_000_000, 10_000_000_000]);
    // At least what a round trip carries and two of the longest frames: 25 ns and 10 us one way.
    let frames = 2 * 4248;
    assert!(ports[0].headroom_bytes >= 625 + frames && ports[0].headroom_bytes < 100_000);
    assert_eq!(ports[1].headroom_bytes - ports[0].headroom_bytes, 25_000 - 625);
    assert_eq!((xoff_bytes, xoff_bytes - xon_bytes), ((128 << 10) + 25_000, 64 << 10));
}

#[test]
fn can_be_given() {
    let given = "pfc = \"on\"\npfc_xoff = \"1M\"\npfc_xon = \"256K\"\npfc_headroom = \"2M\"";
    let pfc = switch(&text(given)).pfc.unwrap();
    assert_eq!((pfc.xoff_bytes, pfc.xon_bytes), (1 << 20, 256 << 10));
    assert!(pfc.ports.iter().all(|port| port.headroom_bytes == 2 << 20));
}

#[test]
fn that_makes_no_sense_is_refused() {
    assert_refused(&text("pfc_xoff = \"1M\""), 3, &["'pfc_xoff'", "pfc = \"on\""]);
    assert_refused(&text("pfc = \"yes\""), 3, &["pfc in [[switch]]", "on"]);
    assert_refused(&text("pfc_xof = \"1M\""), 3, &["did you mean 'pfc_xoff'"]);
    let crossed = "pfc = \"on\"\npfc_xoff = \"1K\"\npfc_xon = \"2K\"";
    assert_refused(&text(crossed), 5, &["2048", "1024"]);
}

#[test]
fn over_a_link_too_long_for_the_buffer_is_refused_with_the_numbers() {
    let far = text("pfc = \"on\"").replace("10us", "50ms").replace("10G", "100G");
    let parts =
        ["'leaf'", "67108864", "'leaf-b'", "100 Gbit/s", "100 ms", "headroom", "pfc_buffer = \""];
    assert_refused(&far, 1, &parts);
    assert!(load(&far.replace("pfc = \"on\"", "pfc = \"on\"\npfc_buffer = \"4G\"")).is_ok());
    let small = "pfc = \"on\"\npfc_headroom = \"1M\"\npfc_xoff = \"1M\"";
    assert!(load(&far.replace("pfc = \"on\"", small)).is_ok(), "whoever asks for drops gets them");
}

#[test]
fn headroom_that_a_link_outgrows_is_warned_of_with_the_number() {
    let warnings = |pfc: &str| load(&text(pfc)).unwrap().scenario.warnings();
    assert_eq!(warnings(""), [""; 0]);
    assert_eq!(warnings("pfc = \"on\""), [""; 0], "what follows from the links suffices");
    // 10 Gbit/s carry 25,000 bytes in 20 us, and two of the longest frames are 2 x 4248; 100 Gbit/s
    // 625 in 50 ns.
    let needed = 25_000 + 2 * 4248;
    assert_eq!(warnings(&format!("pfc = \"on\"\npfc_headroom = {needed}")), [""; 0]);
    let short = warnings(&format!("pfc = \"on\"\npfc_headroom = {}", needed - 1));
    assert_eq!(short.len(), 1, "{short:?}");
    for part in [
        "'leaf'",
        "'b'",
        "10 Gbit/s",
        "20 µs",
        &(needed - 1).to_string(),
        &format!("at least {needed};"),
    ] {
        assert!(short[0].contains(part), "{part:?} is missing: {short:?}");
    }
    assert_eq!(warnings("pfc = \"on\"\npfc_headroom = 9000").len(), 2);
}

#[test]
fn of_hosts_is_set_for_each_or_for_both_of_a_path() {
    let loaded =
        load(&text("").replace("name = \"a\"", "name = \"a\"\npfc = \"off\"\ndcqcn = \"on\""))
            .unwrap();
    let found = |name: &str| {
        let at = loaded.scenario.stations.iter().position(|station| station.name == name).unwrap();
        (host(&loaded, at).pfc, host(&loaded, at).dcqcn)
    };
    assert_eq!((found("a"), found("b")), ((false, true), (true, false)));
    let path = SHORTEST
        .replace("[[flow]]", "receive_packet = \"1500ps\"\nreceive_buffer = \"2M\"\n[[flow]]");
    let path = path.replace("1500ps", "1.5ns");
    let loaded = load(&path).unwrap();
    for at in [0, 1] {
        let profile = host(&loaded, at);
        assert_eq!((profile.receive_packet_ns, profile.receive_buffer_bytes), (2, 2 << 20));
    }
}

#[test]
fn shares_a_buffer_and_an_output() {
    let given = "pfc = \"on\"\npfc_buffer = \"16M\"\npfc_alpha = 1\nets_share = 70";
    let pfc = switch(&text(given)).pfc.unwrap();
    let headroom: u64 = pfc.ports.iter().map(|port| port.headroom_bytes).sum();
    let shared = pfc.shared.unwrap();
    assert_eq!((shared.bytes, shared.alpha), ((16 << 20) - headroom, 1.0));
    assert_eq!((pfc.ets_share, pfc.buffer_bytes()), (Some(70), 16 << 20));
    assert_refused(&text("pfc_alpha = 1"), 3, &["'pfc_alpha'", "pfc = \"on\""]);
    assert_refused(&text("pfc = \"on\"\npfc_alpha = 0"), 4, &["a number above 0"]);
    assert_refused(
        &text("pfc = \"on\"\npfc_alpha = 1\npfc_xoff = \"1M\""),
        5,
        &["take 'pfc_xoff'"],
    );
    assert_refused(&text("pfc = \"on\"\npfc_alpha = 1\npfc_buffer = \"64K\""), 1, &["headroom"]);
    assert_refused(&text("pfc = \"on\"\nets_share = 100"), 4, &["from 1 to 99"]);
}
