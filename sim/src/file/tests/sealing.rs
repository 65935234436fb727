//! Keys and read-ahead of boxes.

use super::*;
use crate::Scenario;
use longhaul_seal::Cleartext;
use longhaul_wan_box::Whole;

/// A path with whole boxes and these keys of theirs.
fn path(keys: &str) -> String {
    format!("[path]\naccelerators = 'both'\n[path.accelerator]\n{keys}\n[[flow]]\n")
}

/// Two boxes in tables, each with a transport and its keys.
fn tables(west: &str, east: &str) -> String {
    format!(
        "[[host]]\nname = 'a'\n[[host]]\nname = 'b'\n\
         [[accelerator]]\nname = 'west'\ntransport = true\n{west}\n\
         [[accelerator]]\nname = 'east'\ntransport = true\n{east}\n\
         [[link]]\nbetween = ['a', 'west.lan']\n\
         [[link]]\nbetween = ['west.wan', 'east.wan']\nrate = '100G'\n\
         [[link]]\nbetween = ['east.lan', 'b']\n[[flow]]\n"
    )
}

fn boxes(scenario: Scenario) -> Vec<Whole> {
    let kinds = scenario.stations.into_iter().map(|station| station.kind);
    let whole = kinds.filter_map(|kind| match kind {
        StationKind::Box(config) => Some(*config.whole.expect("a whole box")),
        _ => None,
    });
    whole.collect()
}

fn seals(text: &str) -> [longhaul_seal::Config; 2] {
    let boxes = boxes(load(text).unwrap().scenario).into_iter();
    let seals: Vec<_> = boxes.map(|whole| whole.seal.expect("a key")).collect();
    seals.try_into().expect("two boxes")
}

#[test]
fn the_boxes_of_a_path_know_each_other() {
    let [near, far] = seals(&path("transport = true\nkey = 'k'"));
    assert_eq!(near.peers[0].public_key, far.private_key.public());
    assert_eq!(far.peers[0].public_key, near.private_key.public());
    assert_eq!((&*near.peers[0].name, &*far.peers[0].name), ("far", "near"));
    assert_ne!(near.private_key.public(), far.private_key.public());
    let other = seals(&format!("seed = 2\n{}", path("transport = true\nkey = 'k'")));
    assert_ne!(near.private_key.public(), other[0].private_key.public());
}

#[test]
fn keys_and_secrets_of_one_name_are_the_same() {
    let [west, east] = seals(&tables(
        "key = 'w'\npeer = ['east=e', 'south=s']\npsk = 'east=both'\nclear = ['10.9.0.0/16']",
        "key = 'e'\npeer = 'west=w'\npsk = ['west=both']\nkey_optional = true",
    ));
    assert_eq!(west.peers[0].public_key, east.private_key.public());
    assert_eq!(east.peers[0].public_key, west.private_key.public());
    let secret = |of: &longhaul_seal::Config, peer: usize| {
        of.peers[peer].preshared_key.as_ref().map(|psk| psk.to_text().to_string())
    };
    assert_eq!(secret(&west, 0), secret(&east, 0));
    assert!(secret(&west, 0).is_some() && secret(&west, 1).is_none());
    assert_eq!(west.cleartext, Cleartext::Of(vec!["10.9.0.0/16".parse().unwrap()]));
    assert_eq!(east.cleartext, Cleartext::Any);
}

#[test]
fn protocols_are_read_ahead_for_on_their_ports() {
    use longhaul_readahead::Protocol;
    for (text, protocols) in [
        ("read_ahead = ['nvme', 'rpc']", &[Protocol::Nvme, Protocol::Rpc][..]),
        ("read_ahead = 'nvme,rpc'", &[Protocol::Nvme, Protocol::Rpc]),
        ("read_ahead = 'rpc'", &[Protocol::Rpc]),
    ] {
        let scenario = load(&path(&format!("transport = true\n{text}"))).unwrap().scenario;
        for whole in boxes(scenario) {
            assert_eq!(whole.read_ahead, Some(longhaul_readahead::Config::of(protocols)), "{text}");
        }
    }
    let none = load(&path("transport = true\nread_ahead = []")).unwrap().scenario;
    assert!(boxes(none).iter().all(|whole| whole.read_ahead.is_none()));
}

#[test]
fn what_does_not_go_together_is_refused() {
    for (keys, part) in [
        ("key = 'k'", "keys encrypt the transport: add transport = true"),
        ("transport = true\npeer = 'far=k'", "'peer' without 'key'"),
        ("transport = true\nclear = '10.0.0.0/8'", "'clear' without 'key'"),
        ("transport = true\nkey_optional = true", "'key_optional' without 'key'"),
        ("transport = true\nkey = 'k'\npeer = 'far=k'", "each other's peers: take 'peer' out"),
        ("transport = true\nkey = 'k'\npsk = 'far=s'", "each other's peers: take 'psk' out"),
        (
            "transport = true\nkey = 'k'\nclear = '10.0.0.0/8'\nkey_optional = true",
            "'clear' with 'key_optional'",
        ),
        ("transport = true\nkey = 'k'\nclear = 'here'", "'here' is no address prefix"),
        ("read_ahead = 'nvme'", "'read_ahead' without a transport: add transport = true"),
        ("transport = true\nread_ahead = 'iser'", "'iser' is neither nvme nor rpc"),
        ("transport = true\nread_ahead = [1]", "a list is not a list of texts"),
    ] {
        let refusal = load(&path(keys)).unwrap_err().to_string();
        assert!(refusal.contains(part) && refusal.starts_with("x.toml:"), "{keys}: {refusal}");
    }
    for (west, part) in [
        ("key = 'w'", "'key' without 'peer'"),
        ("key = 'w'\npeer = 'east'", "'east': write a name and the far box's key"),
        ("key = 'w'\npeer = 'east=e'\npsk = 'south=s'", "'psk' for 'south' without a 'peer'"),
    ] {
        let refusal = load(&tables(west, "")).unwrap_err().to_string();
        assert!(refusal.contains(part), "{west}: {refusal}");
    }
    let own = load(&tables("key = 'w'\npeer = 'east=w'", "")).unwrap().scenario;
    let refusal = crate::Simulation::new(own, |_, _| None).err().unwrap().to_string();
    assert!(refusal.contains("this box's own public key"), "{refusal}");
}
