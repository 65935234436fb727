//! Accelerators of a scenario file.

use super::FileError;
use super::fields::Fields;
use super::schema::ACCELERATOR;
use super::tree::{Node, Place};
use crate::scenario::{Flow, Test};
use crate::wan_box::WanBoxPlan;
use longhaul_accel::{Config, Mode, Policy, Role};
use longhaul_node::Side;
use longhaul_units::{BitRate, Duration};
use longhaul_wan::{Parity, PathConfig, Rate};

/// Sides of an accelerator.
pub(super) const LAN: Side = 0;
pub(super) const WAN: Side = 1;

/// The window at least: what a box lets a requester run ahead over a short path.
const WINDOW_MIN: u64 = 16 << 20;
/// Memory that may be spoken of; the configuration takes no more.
const BYTES_MAX: u64 = u64::MAX >> 9;

/// What a file says of one.
pub(super) struct Settings<'a> {
    fields: Option<Fields<'a>>,
    place: &'a Place,
    role: Role,
}

impl<'a> Settings<'a> {
    /// Of `[[accelerator]]` or `[path.accelerator]`.
    pub fn read(node: Option<&'a Node>, place: &'a Place) -> Result<Self, FileError> {
        let fields = node.map(|node| Fields::of(node, "[[accelerator]]", ACCELERATOR)).transpose()?;
        let is_far = fields.as_ref().and_then(|fields| fields.text("role")) == Some("far");
        let role = if is_far { Role::Far } else { Role::Near };
        Ok(Settings { fields, place, role })
    }

    /// The same for the other half of a box of a pair.
    pub fn of_far(self) -> Self {
        Settings { role: Role::Far, ..self }
    }

    /// Whether it is a whole box: with both halves, and the WAN transport behind them.
    pub fn is_whole(&self) -> bool {
        self.fields.as_ref().and_then(|fields| fields.flag("transport")).unwrap_or(false)
    }

    /// Where it was given a key that it cannot have.
    pub fn refuse(&self, key: &str, cause: &str) -> Result<(), FileError> {
        match &self.fields {
            Some(fields) if fields.has(key) => Err(fields.error(key, cause)),
            _ => Ok(()),
        }
    }

    /// The name that it gives.
    pub fn name(&self) -> Option<&str> {
        self.fields.as_ref().and_then(|fields| fields.text("name"))
    }

    /// What it is given, between these links and for these flows; `delay` is that of the way across the WAN.
    ///
    /// Unless told otherwise a requester may run ahead by four times what a round trip takes, as `longhaul accelerate` has
    /// it with a rate and a distance, and the store is as large as that and the requesters' queues need.
    pub fn config(
        &self,
        wan_rate: Option<BitRate>,
        lan_rate: Option<BitRate>,
        delay: Duration,
        flows: &[Flow],
    ) -> Result<Config, FileError> {
        let least = Config::default();
        let whole = |key: &str| self.fields.as_ref().and_then(|fields| fields.whole(key));
        let number = |key: &str| self.fields.as_ref().and_then(|fields| fields.number(key));
        let time = |key: &str| self.fields.as_ref().and_then(|fields| fields.time(key));
        let rate = |key: &str| self.fields.as_ref().and_then(|fields| fields.rate(key));
        let wan_rate = rate("rate").or(wan_rate);
        let in_flight = wan_rate.map_or(0, |rate| rate.bytes_in(delay.times(2)));
        let window = whole("window").unwrap_or_else(|| in_flight.saturating_mul(4).max(WINDOW_MIN));
        let posted = flows.iter().map(posted_bytes).max().unwrap_or(0);
        let ahead = posted.max(least.flow_bytes_max - least.ack_window_bytes);
        // A window counts up to three quarters of the store.
        let store = whole("store")
            .unwrap_or_else(|| window.saturating_add(window / 2).saturating_add(ahead).min(BYTES_MAX));
        let connections: u64 = flows.iter().map(|flow| u64::from(flow.qps)).sum();
        let memory =
            whole("memory").unwrap_or_else(|| store.saturating_mul(connections.max(4)).min(BYTES_MAX));
        let psns = (in_flight / 1024).next_power_of_two().clamp(least.flow_psns_max.into(), 1 << 22);
        let config = Config {
            flow_bytes_max: store.min(memory),
            ack_window_bytes: window,
            total_bytes_max: memory,
            flow_psns_max: number("psns").unwrap_or(psns as u32),
            flows_max: number("flows").unwrap_or(least.flows_max.max(2 * connections.min(1 << 19) as u32)),
            passthrough_bytes_max: whole("passthrough").unwrap_or(least.passthrough_bytes_max),
            wan_rate,
            lan_rate: rate("lan_rate").or(lan_rate),
            ack_every: number("ack_every").unwrap_or(least.ack_every),
            ack_hold_max: time("ack_hold").unwrap_or(least.ack_hold_max),
            rto_min: time("rto_min").unwrap_or(least.rto_min),
            give_up_after: time("give_up").unwrap_or(least.give_up_after),
            policy: Policy::all(self.mode()),
            role: self.role,
            ..least
        };
        let config = Config { rto_max: config.rto_max.max(config.rto_min), ..config };
        match config.check() {
            Ok(()) => Ok(config),
            Err(why) => Err(self.place.error(format!("this accelerator: {why}"))),
        }
    }
}

impl Settings<'_> {
    /// A whole box with paths of these rates; otherwise as [`Settings::config`].
    ///
    /// A path is sent on at its rate unless `wan_rate` says otherwise. Unless told otherwise the transport keeps twice what is under way in a round trip, and takes in two and a half times
    /// as much.
    pub fn wan_box(
        &self,
        number: usize,
        path_rates: &[Option<BitRate>],
        lan_rate: Option<BitRate>,
        delay: Duration,
        flows: &[Flow],
    ) -> Result<WanBoxPlan, FileError> {
        let rate = BitRate::from_bps(path_rates.iter().flatten().map(|rate| rate.as_bps()).sum());
        let whole = |key: &str| self.fields.as_ref().and_then(|fields| fields.whole(key));
        let wan_rate = self.fields.as_ref().and_then(|fields| fields.text("wan_rate"));
        let path = |&rate: &Option<BitRate>| {
            let rate = match wan_rate {
                Some("adaptive") => Rate::Adaptive { most: None },
                Some("port") => Rate::Port,
                _ => rate.into(),
            };
            PathConfig { rate, ..PathConfig::default() }
        };
        let in_flight = rate.map_or(0, |rate| rate.bytes_in(delay.times(2)));
        let sized = longhaul_wan::Config::for_paths(path_rates.iter().map(path).collect(), in_flight);
        let transport = longhaul_wan::Config {
            box_id: number as u64,
            send_bytes_max: whole("send_memory").unwrap_or(sized.send_bytes_max),
            receive_bytes_max: whole("receive_memory").unwrap_or(sized.receive_bytes_max),
            parity: self.parity(),
            ..sized
        };
        if let Err(why) = transport.check() {
            return Err(self.place.error(format!("this accelerator's transport: {why}")));
        }
        let [near, far] = self.config(rate, lan_rate, delay, flows)?.halves(delay.times(2));
        Ok(WanBoxPlan { near, far, transport })
    }

    /// When the transport sends parity.
    fn parity(&self) -> Parity {
        match self.fields.as_ref().and_then(|fields| fields.text("parity")) {
            Some("off") => Parity::Off,
            Some("always") => Parity::Always,
            _ => Parity::Adaptive,
        }
    }

    /// The mode of all flows.
    pub fn mode(&self) -> Mode {
        let text = self.fields.as_ref().and_then(|fields| fields.text("mode"));
        text.and_then(|text| text.parse().ok()).unwrap_or_default()
    }
}

/// What one QP of a flow may have posted and not completed.
fn posted_bytes(flow: &Flow) -> u64 {
    let depth = match flow.test {
        Test::Bandwidth { tx_depth, .. } => tx_depth,
        Test::Latency { .. } => 1,
    };
    u64::from(depth) * u64::from(flow.message_bytes)
}
