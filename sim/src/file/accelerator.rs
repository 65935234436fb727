//! Accelerators of a scenario file.

use super::FileError;
use super::fields::Fields;
use super::schema::ACCELERATOR;
use super::sealing;
use super::tree::{Node, SourceLocation};
use crate::scenario::{Flow, Test};
use longhaul_accel::{Config, Mode, Policy, Role};
use longhaul_node::Side;
use longhaul_readahead::Protocol;
use longhaul_units::{BitRate, Duration};
use longhaul_wan::{Parity, Rate};
use longhaul_wan_box::{Identity, Path, Sizing};

/// Sides of an accelerator.
pub(super) const LAN: Side = 0;
pub(super) const WAN: Side = 1;

/// Maximum memory that the configuration accepts.
const BYTES_MAX: u64 = u64::MAX >> 9;

/// An accelerator's settings in a file.
pub(super) struct Settings<'a> {
    fields: Option<Fields<'a>>,
    place: &'a SourceLocation,
    role: Role,
    /// The box's place in a `[path]`.
    pair: Option<sealing::Pair>,
}

impl<'a> Settings<'a> {
    /// Reads `[[accelerator]]` or `[path.accelerator]`.
    pub fn read(node: Option<&'a Node>, place: &'a SourceLocation) -> Result<Self, FileError> {
        let fields =
            node.map(|node| Fields::of(node, "[[accelerator]]", ACCELERATOR)).transpose()?;
        let is_far = fields.as_ref().and_then(|fields| fields.text("role")) == Some("far");
        let role = if is_far { Role::Far } else { Role::Near };
        Ok(Settings { fields, place, role, pair: None })
    }

    /// Returns the same settings for a box of `[path]`.
    pub fn of_path(self, pair: sealing::Pair) -> Self {
        Settings { pair: Some(pair), ..self }
    }

    /// Returns the same settings for the other half of a paired box.
    pub fn of_far(self) -> Self {
        Settings { role: Role::Far, ..self }
    }

    /// Returns whether it is a whole box: both halves and the WAN transport.
    pub fn is_whole(&self) -> bool {
        self.fields.as_ref().and_then(|fields| fields.flag("transport")).unwrap_or(false)
    }

    /// Refuses a key that is not permitted here.
    pub fn refuse(&self, key: &str, cause: &str) -> Result<(), FileError> {
        match &self.fields {
            Some(fields) if fields.has(key) => Err(fields.error(key, cause)),
            _ => Ok(()),
        }
    }

    /// The accelerator's name.
    pub fn name(&self) -> Option<&str> {
        self.text("name")
    }

    /// Returns the configuration for these paths, this LAN and these flows; `delay` is the one-way
    /// delay of the WAN.
    ///
    /// The sizes are those of `longhaul accelerate` with a rate and a distance, for the outstanding
    /// data of these requesters. The default memory is what they need. `seed` is the scenario's.
    pub fn config(
        &self,
        number: usize,
        path_rates: &[Option<BitRate>],
        lan_rate: Option<BitRate>,
        delay: Duration,
        flows: &[Flow],
        seed: u64,
    ) -> Result<longhaul_wan_box::Config, FileError> {
        let sizing = self.sizing(path_rates, delay, flows);
        let accelerator = self.accelerator(&sizing, lan_rate);
        let checked = accelerator.check();
        checked.map_err(|why| self.place.error(format!("this accelerator: {why}")))?;
        let sealing = match &self.fields {
            Some(fields) => sealing::read(fields, self.pair, self.is_whole(), seed)?,
            None => None,
        };
        let read_ahead = self.read_ahead(&sizing)?;
        if !self.is_whole() {
            return Ok(longhaul_wan_box::Config::alone(accelerator));
        }
        let around = if sealing.is_some() { longhaul_seal::OVERHEAD } else { 0 };
        let sized = sizing.transport(Identity::of_scenario(number as u64), around);
        let transport = longhaul_wan::Config {
            send_bytes_max: self.whole("send_memory").unwrap_or(sized.send_bytes_max),
            receive_bytes_max: self.whole("receive_memory").unwrap_or(sized.receive_bytes_max),
            parity: self.parity(),
            ..sized
        };
        let checked = transport.check();
        checked.map_err(|why| self.place.error(format!("this accelerator's transport: {why}")))?;
        let config = longhaul_wan_box::Config::whole(accelerator, transport, sizing.round_trip());
        Ok(config.sealed(sealing).reading_ahead(read_ahead))
    }

    /// The read-ahead, if protocols are given.
    fn read_ahead(&self, sizing: &Sizing) -> Result<Option<longhaul_readahead::Config>, FileError> {
        let Some(fields) = self.fields.as_ref().filter(|fields| fields.has("read_ahead")) else {
            return Ok(None);
        };
        if !self.is_whole() {
            let cause = "'read_ahead' without a transport: add transport = true";
            return Err(fields.error("read_ahead", cause));
        }
        let protocols: Result<Vec<Protocol>, _> =
            fields.list("read_ahead").map(str::parse).collect();
        let protocols = protocols.map_err(|why| fields.error("read_ahead", why))?;
        let config = longhaul_readahead::Config::of(&protocols);
        Ok((!protocols.is_empty()).then(|| sizing.read_ahead(config)))
    }

    fn sizing(&self, path_rates: &[Option<BitRate>], delay: Duration, flows: &[Flow]) -> Sizing {
        let defaults = Sizing::default();
        let capacity = |of_link: Option<BitRate>| self.rate("rate").or(of_link);
        let rate = |capacity: Option<BitRate>| match self.text("wan_rate") {
            Some("adaptive") => Rate::Adaptive { most: None },
            Some("port") => Rate::Port,
            _ => capacity.into(),
        };
        let path = |&of_link: &Option<BitRate>| Path {
            capacity: capacity(of_link),
            rate: rate(capacity(of_link)),
            mtu: None,
        };
        let posted = flows.iter().map(posted_bytes).max().unwrap_or(0);
        let connections: u64 = flows.iter().map(|flow| u64::from(flow.qps)).sum();
        let flows_max = defaults.flows_max.max(2 * connections.min(1 << 19) as u32);
        let sizing = Sizing {
            paths: path_rates.iter().map(path).collect(),
            delay: Some(delay),
            window_bytes: self.whole("window"),
            outstanding_bytes: posted.max(defaults.outstanding_bytes),
            flows_max: self.number("flows").unwrap_or(flows_max),
            ..defaults
        };
        let store = self.whole("store").unwrap_or(sizing.flow_bytes());
        let taken = store.saturating_mul(connections.max(4)).min(BYTES_MAX);
        Sizing { memory_bytes: self.whole("memory").unwrap_or(taken), ..sizing }
    }

    fn accelerator(&self, sizing: &Sizing, lan_rate: Option<BitRate>) -> Config {
        let sized = sizing.accelerator();
        let rto_min = self.time("rto_min").unwrap_or(sized.rto_min);
        Config {
            flow_bytes_max: self
                .whole("store")
                .map_or(sized.flow_bytes_max, |it| it.min(sized.total_bytes_max)),
            flow_psns_max: self.number("psns").unwrap_or(sized.flow_psns_max),
            passthrough_bytes_max: self.whole("passthrough").unwrap_or(sized.passthrough_bytes_max),
            lan_pacing: self.rate("lan_rate").or(lan_rate).into(),
            ack_every: self.number("ack_every").unwrap_or(sized.ack_every),
            ack_hold_max: self.time("ack_hold").unwrap_or(sized.ack_hold_max),
            rto_min,
            rto_max: sized.rto_max.max(rto_min),
            give_up_after: self.time("give_up").unwrap_or(sized.give_up_after),
            policy: Policy::all(self.mode()),
            role: self.role,
            ..sized
        }
    }

    fn whole(&self, key: &str) -> Option<u64> {
        self.fields.as_ref()?.whole(key)
    }

    fn number(&self, key: &str) -> Option<u32> {
        self.fields.as_ref()?.number(key)
    }

    fn time(&self, key: &str) -> Option<Duration> {
        self.fields.as_ref()?.time(key)
    }

    fn rate(&self, key: &str) -> Option<BitRate> {
        self.fields.as_ref()?.rate(key)
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.fields.as_ref()?.text(key)
    }

    /// The transport's parity setting.
    fn parity(&self) -> Parity {
        match self.text("parity") {
            Some("off") => Parity::Off,
            Some("always") => Parity::Always,
            _ => Parity::Adaptive,
        }
    }

    /// The mode of all flows.
    pub fn mode(&self) -> Mode {
        self.text("mode").and_then(|text| text.parse().ok()).unwrap_or_default()
    }
}

/// Returns the bytes that one QP of a flow may have posted and not completed.
fn posted_bytes(flow: &Flow) -> u64 {
    let depth = match flow.test {
        Test::Bandwidth { tx_depth: depth, .. }
        | Test::Storage { depth, .. }
        | Test::Migration { depth, .. } => depth,
        Test::Latency { .. } => 1,
    };
    u64::from(depth) * u64::from(flow.message_bytes)
}
