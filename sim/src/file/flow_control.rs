//! Priority-based flow control of switches and hosts: settings of a file, and defaults derived from
//! the links.

use super::FileError;
use super::fields::Fields;
use super::tree::SourceLocation;
use crate::pfc::{pfc_headroom_bytes, round_trip};
use crate::profile::NicProfile;
use crate::scenario::{Cable, StationPlan};
use longhaul_switch::{PfcConfig, PfcPort};
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
    place: &'a SourceLocation,
}

impl<'a> Settings<'a> {
    /// Reads the settings; `None`: off.
    pub fn read(fields: &Fields<'a>) -> Result<Option<Self>, FileError> {
        if fields.text("pfc") != Some("on") {
            let keys = ["pfc_xoff", "pfc_xon", "pfc_headroom", "pfc_buffer"];
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
            place: fields.place,
        };
        if let (Some(xoff), Some(xon)) = (settings.xoff, settings.xon)
            && xon > xoff
        {
            let cause =
                format!("pfc_xon is {xon} bytes and pfc_xoff {xoff}: an input goes on below XOFF");
            return Err(fields.error("pfc_xon", cause));
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
        let ports = ports.into_iter().map(|(_, port)| port).collect();
        let config = PfcConfig { priority: PfcConfig::ROCE_PRIORITY, xoff_bytes, xon_bytes, ports };
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
        pfc: flag("pfc", profile.pfc),
        dcqcn: flag("dcqcn", profile.dcqcn),
        ..profile
    }
}
