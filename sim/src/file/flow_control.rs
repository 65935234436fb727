//! Priority-based flow control of switches and hosts: settings of a file, and defaults derived from
//! the links.

use super::FileError;
use super::fields::Fields;
use super::tree::SourceLocation;
use crate::pfc::{pfc_headroom_bytes, round_trip};
use crate::profile::NicProfile;
use crate::scenario::{Cable, StationPlan};
use longhaul_switch::{PfcConfig, PfcPort, SharedBuffer};
use longhaul_units::{BitRate, Duration};

/// XOFF threshold of an input, in addition to one round trip's worth of its link: some 30 of the
/// longest frames.
const XOFF_BYTES: u64 = 128 << 10;
/// Difference between XOFF and XON.
const HYSTERESIS_BYTES: u64 = 64 << 10;
/// A switch's memory for lossless frames, as in data-centre switches.
const BUFFER_BYTES: u64 = 64 << 20;

/// Settings in a switch's table.
pub(super) struct Settings<'a> {
    xoff: Option<u64>,
    xon: Option<u64>,
    headroom: Option<u64>,
    buffer: u64,
    alpha: Option<f64>,
    ets_share: Option<u8>,
    place: &'a SourceLocation,
}

impl<'a> Settings<'a> {
    /// Reads the settings; `None`: off.
    pub fn read(fields: &Fields<'a>) -> Result<Option<Self>, FileError> {
        if fields.text("pfc") != Some("on") {
            let keys =
                ["pfc_xoff", "pfc_xon", "pfc_headroom", "pfc_buffer", "pfc_alpha", "ets_share"];
            return match keys.into_iter().find(|key| fields.has(key)) {
                Some(key) => {
                    let cause = format!(
                        "'{key}' without flow control: add pfc = \"on\", or take '{key}' out"
                    );
                    Err(fields.error(key, cause))
                }
                None => Ok(None),
            };
        }
        let settings = Settings {
            xoff: fields.whole("pfc_xoff"),
            xon: fields.whole("pfc_xon"),
            headroom: fields.whole("pfc_headroom"),
            buffer: fields.whole("pfc_buffer").unwrap_or(BUFFER_BYTES),
            alpha: fields.real("pfc_alpha"),
            ets_share: fields.number("ets_share").map(|share| share as u8),
            place: fields.place,
        };
        if let (Some(xoff), Some(xon)) = (settings.xoff, settings.xon)
            && xon > xoff
        {
            let cause =
                format!("pfc_xon is {xon} bytes and pfc_xoff {xoff}: an input goes on below XOFF");
            return Err(fields.error("pfc_xon", cause));
        }
        let own = ["pfc_xoff", "pfc_xon"].into_iter().find(|key| fields.has(key));
        if let (Some(_), Some(key)) = (settings.alpha, own) {
            let cause = format!("pfc_alpha sets the thresholds of all inputs: take '{key}' out");
            return Err(fields.error(key, cause));
        }
        Ok(Some(settings))
    }

    /// Returns the configuration of the `number`-th station, whose ports run at `rate` unless their
    /// links have another. Each port has the headroom of its link; the thresholds follow the
    /// longest link.
    pub fn config(
        &self,
        number: usize,
        rate: BitRate,
        stations: &[StationPlan],
        cables: &[Cable],
        names: &[String],
    ) -> Result<PfcConfig, FileError> {
        let mut ports = Vec::new();
        let (mut carried_max, mut longest) = (0, None);
        for (cable, name) in cables.iter().zip(names) {
            let Some((_, side)) = cable.ends.into_iter().find(|end| end.0 == number) else {
                continue;
            };
            let rate = cable.wire.rate.unwrap_or(rate);
            let round_trip =
                round_trip(cable, cable.ends.map(|(station, _)| &stations[station].kind));
            let needed = pfc_headroom_bytes(rate, round_trip);
            let carried = rate.bytes_in(round_trip);
            if carried >= carried_max {
                (carried_max, longest) = (carried, Some((name, rate, round_trip, needed)));
            }
            ports.push((side, PfcPort { rate, headroom_bytes: self.headroom.unwrap_or(needed) }));
        }
        ports.sort_by_key(|(side, _)| *side);
        let default = XOFF_BYTES.saturating_add(carried_max);
        let xoff_bytes =
            self.xoff.unwrap_or_else(|| self.xon.map_or(default, |xon| default.max(xon)));
        let xon_bytes = self.xon.unwrap_or_else(|| match self.xoff {
            Some(xoff) => xoff / 2,
            None => xoff_bytes - HYSTERESIS_BYTES,
        });
        let ports: Vec<PfcPort> = ports.into_iter().map(|(_, port)| port).collect();
        let headroom =
            ports.iter().fold(0, |sum: u64, port| sum.saturating_add(port.headroom_bytes));
        let shared = self.alpha.map(|alpha| SharedBuffer {
            bytes: self.buffer.saturating_sub(headroom),
            alpha,
            hysteresis_bytes: HYSTERESIS_BYTES,
        });
        if shared.is_some_and(|shared| shared.bytes == 0) {
            return Err(self.place.error(format!(
                "pfc_buffer is {} bytes, and the headroom of the ports alone {headroom}: give more",
                self.buffer
            )));
        }
        let config = PfcConfig {
            priority: PfcConfig::ROCE_PRIORITY,
            xoff_bytes,
            xon_bytes,
            shared,
            ets_share: self.ets_share,
            ports,
        };
        match longest {
            Some(link) if config.buffer_bytes() > self.buffer => {
                Err(self.too_long(&stations[number].name, &config, link))
            }
            _ => Ok(config),
        }
    }

    fn too_long(
        &self,
        switch: &str,
        config: &PfcConfig,
        (name, rate, round_trip, needed): (&String, BitRate, Duration, u64),
    ) -> FileError {
        let all = config.buffer_bytes();
        self.place.error(format!(
            "flow control of switch '{switch}' takes {all} bytes for lossless frames, and \
             pfc_buffer is {}: link '{name}' ({rate}, {round_trip} there and back) needs {needed} \
             bytes of headroom, and as much before XOFF; shorten it, lower its rate, give \
             pfc_buffer = \"{}M\", or less pfc_xoff and pfc_headroom, which drops frames",
            self.buffer,
            all.div_ceil(1 << 20),
        ))
    }
}

/// Reads the settings of a `[[host]]` or `[path]` that are not part of the NIC's profile.
pub(super) fn of_host(fields: &Fields<'_>, profile: NicProfile) -> NicProfile {
    let flag = |key, otherwise| fields.text(key).map_or(otherwise, |word| word == "on");
    let time = fields.time("receive_packet");
    NicProfile {
        receive_packet_ns: time
            .map_or(profile.receive_packet_ns, |time| time.as_ps().div_ceil(1000)),
        receive_buffer_bytes: fields
            .whole("receive_buffer")
            .unwrap_or(profile.receive_buffer_bytes),
        srq_depth: fields.number("srq").unwrap_or(profile.srq_depth),
        egress_rate_bps: fields.whole("egress_rate").unwrap_or(profile.egress_rate_bps),
        pfc: flag("pfc", profile.pfc),
        dcqcn: flag("dcqcn", profile.dcqcn),
        ..profile
    }
}
