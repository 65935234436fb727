//! Keys of boxes in a scenario file: each is derived from its name and the scenario's seed.

use super::FileError;
use super::fields::Fields;
use longhaul_seal::{Cleartext, Config, PeerConfig, PresharedKey, PrivateKey, Seed};
use longhaul_units::{Rng, SplitMix64};
use longhaul_wire::PrefixError;

/// Settings that need a key.
const OF_KEY: [&str; 4] = ["peer", "psk", "clear", "key_optional"];

/// The names of a path's box and of the other one, which know each other's keys.
pub(super) type Pair = (&'static str, &'static str);

/// The seal of a box with these settings, if it has a key.
pub(super) fn read(
    fields: &Fields<'_>,
    pair: Option<Pair>,
    is_whole: bool,
    seed: u64,
) -> Result<Option<Config>, FileError> {
    let Some(key) = fields.text("key") else {
        return match OF_KEY.into_iter().find(|key| fields.has(key)) {
            None => Ok(None),
            Some(other) => {
                let cause = format!(
                    "'{other}' without 'key': name a key of this box's own, as in key = \"west\""
                );
                Err(fields.error(other, cause))
            }
        };
    };
    if !is_whole {
        return Err(fields.error("key", "keys encrypt the transport: add transport = true"));
    }
    let (own, peers) = match pair {
        Some((own, other)) => {
            if let Some(key) = ["peer", "psk"].into_iter().find(|key| fields.has(key)) {
                let cause = format!(
                    "the boxes of [path] are each other's peers: take '{key}' out, or write \
                     [[accelerator]] tables"
                );
                return Err(fields.error(key, cause));
            }
            let of = |name: &str| private_key(seed, &format!("{key} {name}"));
            let public_key = of(other).public();
            (of(own), vec![PeerConfig { name: other.into(), public_key, preshared_key: None }])
        }
        None => (private_key(seed, key), peers(fields, seed)?),
    };
    // The box's own seed is set with the simulation's.
    let config = Config::new(own, peers, Seed::of_scenario(seed));
    Ok(Some(Config { cleartext: cleartext(fields)?, ..config }))
}

/// The far boxes of `peer`, with the pre-shared keys of `psk`.
fn peers(fields: &Fields<'_>, seed: u64) -> Result<Vec<PeerConfig>, FileError> {
    let pairs = |key: &'static str, wanted: &'static str| {
        let pair = move |text: &str| match text.split_once('=') {
            Some((name, of)) if !name.is_empty() && !of.is_empty() => {
                Ok((name.to_owned(), of.to_owned()))
            }
            _ => Err(fields.error(key, format!("'{text}': write {wanted}"))),
        };
        fields.list(key).map(pair).collect::<Result<Vec<_>, _>>()
    };
    let psks = pairs("psk", "a peer's name and a secret's, as in \"east=both\"")?;
    let peers = pairs("peer", "a name and the far box's key, as in \"east=east\"")?;
    if peers.is_empty() {
        let cause = "'key' without 'peer': name the other box's key, as in peer = [\"east=east\"]";
        return Err(fields.error("key", cause));
    }
    if let Some((name, _)) = psks.iter().find(|(name, _)| peers.iter().all(|peer| peer.0 != *name))
    {
        let cause = format!("'psk' for '{name}' without a 'peer' of that name");
        return Err(fields.error("psk", cause));
    }
    let peer = |(name, key): (String, String)| {
        let psk = psks.iter().find(|(of, _)| *of == name);
        PeerConfig {
            public_key: private_key(seed, &key).public(),
            preshared_key: psk.map(|(_, secret)| PresharedKey::generate(&derived(seed, secret))),
            name,
        }
    };
    Ok(peers.into_iter().map(peer).collect())
}

/// RDMA traffic that may cross the WAN in cleartext.
fn cleartext(fields: &Fields<'_>) -> Result<Cleartext, FileError> {
    let is_optional = fields.flag("key_optional").unwrap_or(false);
    if is_optional && fields.has("clear") {
        let cause = "'clear' with 'key_optional', which lets all traffic cross in cleartext: take \
                     one of them out";
        return Err(fields.error("clear", cause));
    }
    if is_optional {
        return Ok(Cleartext::Any);
    }
    let prefixes: Result<_, PrefixError> = fields.list("clear").map(str::parse).collect();
    prefixes.map(Cleartext::Of).map_err(|why| fields.error("clear", why))
}

fn private_key(seed: u64, name: &str) -> PrivateKey {
    PrivateKey::generate(&derived(seed, name))
}

/// The seed of a key; nothing is secret in virtual time.
fn derived(seed: u64, name: &str) -> Seed {
    let mix = |seed, byte| SplitMix64::new(seed ^ u64::from(byte)).next_u64();
    Seed::of_scenario(name.bytes().fold(seed, mix))
}
