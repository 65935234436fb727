//! Stations and links of a scenario file.

use super::accelerator::{self, Settings};
use super::fields::Fields;
use super::quantity::{Ecn, ecn};
use super::schema::{HOST, LINK, PATH, SWITCH, suggest};
use super::tree::{Node, SourceLocation, Value};
use super::{Document, FileError, LinkPlan, Read, flow_control, nic, twice};
use crate::profile::NicProfile;
use crate::scenario::{Cable, Flow, StationKind, StationPlan};
use longhaul_accel::Mode;
use longhaul_cc::RedConfig;
use longhaul_link::{Bursts, Cut, Impairments, LinkConfig, TextError};
use longhaul_node::Side;
use longhaul_switch::{PORTS_MAX, SwitchConfig};
use longhaul_units::{BitRate, Duration, Instant};
use std::str::FromStr;

/// A cable of a few metres.
const SHORT: Duration = Duration::from_ns(25);

/// A host's address has its number in 16 bits.
const STATIONS_MAX: usize = 65_000;

/// A station whose open settings are derived from its links.
enum Draft<'a> {
    Host(Box<NicProfile>),
    Accelerator(Settings<'a>),
    Switch {
        ports: Option<u64>,
        rate: Option<BitRate>,
        queue_bytes: u64,
        ecn: Option<RedConfig>,
        pfc: Option<flow_control::Settings<'a>>,
    },
}

struct Station<'a> {
    name: String,
    place: &'a SourceLocation,
    draft: Draft<'a>,
}

/// A link as written.
struct Link<'a> {
    name: String,
    place: &'a SourceLocation,
    ends: [(usize, Side); 2],
    rate: Option<BitRate>,
    rate_place: &'a SourceLocation,
    wire: LinkConfig,
    loses: [bool; 2],
    record: Option<String>,
}

/// Stations and links before open settings are derived.
#[derive(Default)]
struct Drafts<'a> {
    stations: Vec<Station<'a>>,
    links: Vec<Link<'a>>,
}

/// Stations and links of a file.
pub(super) struct Network<'a> {
    stations: Vec<StationPlan>,
    settings: Vec<Option<Settings<'a>>>,
    pub cables: Vec<Cable>,
    pub links: Vec<LinkPlan>,
}

impl<'a> Network<'a> {
    /// Reads the stations and links of a document.
    pub fn read(document: &'a Document, files: &mut Read<'_>) -> Result<Self, FileError> {
        let mut drafts = Drafts::default();
        match document.path() {
            Some(path) => {
                for table in ["host", "accelerator", "switch", "link"] {
                    if let Some(node) = document.tables(table).first() {
                        let cause = format!(
                            "[path] makes hosts, boxes and links by itself: take [path] or \
                             [[{table}]] out"
                        );
                        return Err(node.place.error(cause));
                    }
                }
                drafts.of_path(path, files)?;
            }
            None => drafts.of_tables(document, files)?,
        }
        drafts.check(document)?;
        drafts.finish()
    }

    /// A station's name.
    pub fn name(&self, station: usize) -> &str {
        &self.stations[station].name
    }

    /// A station's kind.
    pub fn kind(&self, station: usize) -> &StationKind {
        &self.stations[station].kind
    }

    /// Returns the station of this name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.stations.iter().position(|station| station.name == name)
    }

    /// All hosts.
    pub fn hosts(&self) -> impl Iterator<Item = usize> {
        (0..self.stations.len())
            .filter(|station| matches!(self.kind(*station), StationKind::Host(_)))
    }

    /// Returns whether links connect two stations.
    pub fn is_joined(&self, from: usize, to: usize) -> bool {
        self.reach(from, None).iter().any(|(station, _)| *station == to)
    }

    /// Returns the stations reachable from one, only through `first` if given, with their delays.
    /// Links form no loops.
    fn reach(&self, from: usize, first: Option<Side>) -> Vec<(usize, Duration)> {
        let mut found = vec![(from, Duration::ZERO)];
        let mut at = 0;
        while let Some(&(station, delay)) = found.get(at) {
            for cable in &self.cables {
                for (here, there) in
                    [(cable.ends[0], cable.ends[1]), (cable.ends[1], cable.ends[0])]
                {
                    let is_open = at > 0 || first.is_none_or(|side| side == here.1);
                    if here.0 == station
                        && is_open
                        && !found.iter().any(|(known, _)| *known == there.0)
                    {
                        found.push((there.0, delay + cable.wire.delay));
                    }
                }
            }
            at += 1;
        }
        found
    }

    /// The stations, for these flows and the scenario's seed.
    pub fn into_stations(
        mut self,
        flows: &[Flow],
        seed: u64,
    ) -> Result<Vec<StationPlan>, FileError> {
        for station in 0..self.stations.len() {
            let Some(settings) = &self.settings[station] else { continue };
            let lan_rate = self.rate_at(station, accelerator::LAN);
            let reached = self.reach(station, Some(accelerator::WAN));
            let delay = reached.iter().map(|(_, delay)| *delay).max().unwrap_or_default();
            let paths = self.cables.iter().flat_map(|cable| cable.ends);
            let paths = paths.filter(|end| end.0 == station && end.1 != accelerator::LAN).count();
            let rates: Vec<_> = (1..=paths).map(|side| self.rate_at(station, side)).collect();
            let config = settings.config(station, &rates, lan_rate, delay, flows, seed)?;
            self.stations[station].kind = StationKind::Box(Box::new(config));
        }
        Ok(self.stations)
    }

    fn rate_at(&self, station: usize, side: Side) -> Option<BitRate> {
        self.cables.iter().find(|cable| cable.ends.contains(&(station, side)))?.wire.rate
    }
}

/// Refuses settings of a single box on a path that need a second box: a role, a transport, or mode
/// "far".
fn refuse_lone_box(settings: &Settings, both: bool, paired: bool) -> Result<(), FileError> {
    settings.refuse("role", "a path's boxes have their roles: paired = true puts in both")?;
    let is_whole = settings.is_whole();
    if is_whole && !both {
        let cause = "a transport joins two boxes: say accelerators = \"both\"";
        settings.refuse("transport", cause)?;
    }
    if !is_whole && !paired && settings.mode() == Mode::Far {
        let cause = "mode \"far\" takes a box with the far role: add paired = true to [path]";
        settings.refuse("mode", cause)?;
    }
    Ok(())
}

impl<'a> Drafts<'a> {
    fn of_path(&mut self, path: &'a Node, files: &mut Read<'_>) -> Result<(), FileError> {
        let fields = Fields::of(path, "[path]", PATH)?;
        let place = &path.place;
        let profile = flow_control::of_host(&fields, nic::read(fields.node("nic"), place, files)?);
        let rate = fields.rate("rate").or(BitRate::from_bps(profile.rate_bps));
        for name in ["a", "b"] {
            let draft = Draft::Host(Box::new(profile.clone()));
            self.stations.push(Station { name: name.into(), place, draft });
        }
        let which = fields.text("accelerators").unwrap_or("none");
        let boxes: Vec<&str> = match which {
            "both" => vec!["near", "far"],
            "none" => vec![],
            one => vec![one],
        };
        let of_boxes = ["accelerator", "lan_delay", "lan_rule", "paired"];
        if let ("none", Some(key)) = (which, of_boxes.into_iter().find(|key| fields.has(key))) {
            let cause = format!(
                "'{key}' without an accelerator: add accelerators = \"both\", or take it out"
            );
            return Err(fields.error(key, cause));
        }
        let paired = fields.flag("paired").unwrap_or(false);
        if paired && which != "both" {
            return Err(fields.error("paired", "a pair has two boxes: say accelerators = \"both\""));
        }
        let lan = LinkConfig {
            delay: fields.time("lan_delay").unwrap_or(SHORT),
            rules: listed(&fields, "lan_rule")?,
            ..LinkConfig::default()
        };
        // Station and side of each end of the fibre.
        let mut ends = [(0, 0), (1, 0)];
        for name in boxes {
            let pair = if name == "near" { ("near", "far") } else { ("far", "near") };
            let settings = Settings::read(fields.node("accelerator"), place)?.of_path(pair);
            let is_whole = settings.is_whole();
            refuse_lone_box(&settings, which == "both", paired)?;
            let number = self.stations.len();
            self.stations.push(Station {
                name: name.into(),
                place,
                draft: Draft::Accelerator(settings),
            });
            let host = usize::from(name == "far");
            ends[host] = (number, accelerator::WAN);
            if paired && !is_whole {
                ends[host] = self.far_half(name, place, &fields, number, rate)?;
            }
            self.links.push(Link {
                name: ["lan-a", "lan-b"][host].into(),
                place,
                ends: [(host, 0), (number, accelerator::LAN)],
                rate,
                rate_place: fields.place_of("rate"),
                wire: lan.clone(),
                loses: [false; 2],
                record: None,
            });
        }
        let wan = link(&fields, "wan".into(), ends)?;
        self.links.push(Link { rate, ..wan });
        Ok(())
    }

    /// Adds the half of box `name` that serves requesters beyond the WAN, behind its other half,
    /// station `number`. Returns its end of the fibre.
    fn far_half(
        &mut self,
        name: &str,
        place: &'a SourceLocation,
        fields: &Fields<'a>,
        number: usize,
        rate: Option<BitRate>,
    ) -> Result<(usize, Side), FileError> {
        let settings = Settings::read(fields.node("accelerator"), place)?.of_far();
        let far = self.stations.len();
        let name = format!("{name}-responders");
        self.links.push(Link {
            name: format!("in-{name}"),
            place,
            ends: [(number, accelerator::WAN), (far, accelerator::WAN)],
            rate,
            rate_place: fields.place_of("rate"),
            wire: LinkConfig::default(),
            loses: [false; 2],
            record: None,
        });
        self.stations.push(Station { name, place, draft: Draft::Accelerator(settings) });
        Ok((far, accelerator::LAN))
    }

    fn of_tables(&mut self, document: &'a Document, files: &mut Read<'_>) -> Result<(), FileError> {
        for node in document.tables("host") {
            let fields = Fields::of(node, "[[host]]", HOST)?;
            let profile =
                flow_control::of_host(&fields, nic::read(fields.node("nic"), &node.place, files)?);
            self.station(&fields, Draft::Host(Box::new(profile)))?;
        }
        for node in document.tables("accelerator") {
            let settings = Settings::read(Some(node), &node.place)?;
            if settings.is_whole() {
                settings
                    .refuse("role", "a box with a transport has both halves: take 'role' out")?;
            }
            let name = settings.name().map(str::to_owned);
            let draft = Draft::Accelerator(settings);
            self.named(name, &node.place, "[[accelerator]]", draft)?;
        }
        for node in document.tables("switch") {
            let fields = Fields::of(node, "[[switch]]", SWITCH)?;
            let queue_bytes = fields.whole("queue").unwrap_or(LinkConfig::default().queue_bytes);
            let draft = Draft::Switch {
                ports: fields.whole("ports"),
                rate: fields.rate("rate"),
                queue_bytes,
                ecn: marking(&fields, queue_bytes),
                pfc: flow_control::Settings::read(&fields)?,
            };
            self.station(&fields, draft)?;
        }
        for node in document.tables("link") {
            let fields = Fields::of(node, "[[link]]", LINK)?;
            let ends = self.ends(&fields)?;
            let [first, second] = ends.map(|(station, _)| self.stations[station].name.clone());
            let name =
                fields.text("name").map_or_else(|| format!("{first}-{second}"), str::to_owned);
            self.links.push(link(&fields, name, ends)?);
        }
        Ok(())
    }

    fn station(&mut self, fields: &Fields<'a>, draft: Draft<'a>) -> Result<(), FileError> {
        let name = fields.text("name").map(str::to_owned);
        self.named(name, fields.place, fields.what, draft)
    }

    fn named(
        &mut self,
        name: Option<String>,
        place: &'a SourceLocation,
        what: &str,
        draft: Draft<'a>,
    ) -> Result<(), FileError> {
        let name = name.ok_or_else(|| place.error(format!("this {what} has no 'name'")))?;
        if self.stations.iter().any(|station| station.name == name) {
            return Err(
                place.error(format!("two stations are called '{name}': links could mean either"))
            );
        }
        self.stations.push(Station { name, place, draft });
        Ok(())
    }

    fn ends(&self, fields: &Fields<'a>) -> Result<[(usize, Side); 2], FileError> {
        let wanted = "between = [\"a\", \"near.lan\"]";
        let Some(node) = fields.node("between") else {
            return Err(fields.place.error(format!("this [[link]] joins nothing: say {wanted}")));
        };
        let Value::List(items) = &node.value else {
            return Err(node
                .place
                .error(format!("between is {}: say {wanted}", node.value.kind())));
        };
        let [first, second] = &items[..] else {
            return Err(node
                .place
                .error(format!("a link has two ends, not {}: say {wanted}", items.len())));
        };
        let ends = [self.end(first)?, self.end(second)?];
        if ends[0].0 == ends[1].0 {
            let name = &self.stations[ends[0].0].name;
            return Err(node
                .place
                .error(format!("a link from '{name}' to itself: name another station")));
        }
        Ok(ends)
    }

    /// `a` for a host or a switch, `near.lan` or `near.wan` for an accelerator; `near.wan2` and so
    /// on for further paths of one with a transport.
    fn end(&self, node: &Node) -> Result<(usize, Side), FileError> {
        let Value::Text(text) = &node.value else {
            return Err(node.place.error(format!("{} is no station's name", node.value.kind())));
        };
        let (name, side) =
            text.split_once('.').map_or((&**text, None), |(name, side)| (name, Some(side)));
        let Some(number) = self.stations.iter().position(|station| station.name == name) else {
            let names = self.stations.iter().map(|station| &*station.name);
            let known = suggest(name, names, "none of the stations");
            return Err(node.place.error(format!("'{name}' is {known}")));
        };
        match (&self.stations[number].draft, side) {
            (Draft::Accelerator(_), Some("lan")) => Ok((number, accelerator::LAN)),
            (Draft::Accelerator(_), Some("wan")) => Ok((number, accelerator::WAN)),
            (Draft::Accelerator(settings), Some(side)) if settings.is_whole() => {
                let path = side.strip_prefix("wan").and_then(|path| path.parse::<usize>().ok());
                match path {
                    Some(path @ 2..=15) => Ok((number, path)),
                    _ => {
                        let cause = format!(
                            "'{text}': a box has the sides '{name}.lan', '{name}.wan', \
                             '{name}.wan2' to '{name}.wan15'"
                        );
                        Err(node.place.error(cause))
                    }
                }
            }
            (Draft::Accelerator(_), _) => {
                let cause = format!(
                    "'{text}': an accelerator has two sides, '{name}.lan' and '{name}.wan'"
                );
                Err(node.place.error(cause))
            }
            (Draft::Host(_), None) => Ok((number, 0)),
            (Draft::Switch { .. }, None) => {
                let ends = self.links.iter().flat_map(|link| link.ends);
                Ok((number, ends.filter(|end| end.0 == number).count()))
            }
            (_, Some(_)) => {
                Err(node.place.error(format!("'{text}': '{name}' is no accelerator, say '{name}'")))
            }
        }
    }

    /// Refuses impossible networks.
    fn check(&self, document: &Document) -> Result<(), FileError> {
        let names: Vec<&str> = self.links.iter().map(|link| &*link.name).collect();
        if let Some(at) = twice(&names) {
            let cause =
                format!("two links are called '{}': give one of them another 'name'", names[at]);
            return Err(self.links[at].place.error(cause));
        }
        if self.stations.iter().filter(|station| matches!(station.draft, Draft::Host(_))).count()
            < 2
        {
            let cause =
                "a network takes two hosts at least: add [[host]] tables and links, or a [path]";
            return Err(document.start().error(cause));
        }
        if self.stations.len() > STATIONS_MAX {
            let cause = format!("{} stations: {STATIONS_MAX} are the most", self.stations.len());
            return Err(document.start().error(cause));
        }
        self.check_sides()?;
        self.check_loops()
    }

    fn check_sides(&self) -> Result<(), FileError> {
        let count = |end| {
            self.links.iter().flat_map(|link| link.ends).filter(|known| *known == end).count()
        };
        for (number, station) in self.stations.iter().enumerate() {
            let name = &station.name;
            let sides: Vec<(Side, String)> = match &station.draft {
                Draft::Host(_) => vec![(0, name.clone())],
                Draft::Accelerator(_) => {
                    let ends = self.links.iter().flat_map(|link| link.ends);
                    let last =
                        ends.filter(|end| end.0 == number).map(|end| end.1).max().unwrap_or(0);
                    let further = (2..=last).map(|side| (side, format!("{name}.wan{side}")));
                    [(0, format!("{name}.lan")), (1, format!("{name}.wan"))]
                        .into_iter()
                        .chain(further)
                        .collect()
                }
                Draft::Switch { ports, .. } => {
                    let links = self
                        .links
                        .iter()
                        .flat_map(|link| link.ends)
                        .filter(|end| end.0 == number)
                        .count();
                    let most = ports.unwrap_or(PORTS_MAX as u64);
                    if links < 2 || links as u64 > most {
                        let cause =
                            format!("switch '{name}' has {links} links; it takes 2 to {most}");
                        return Err(station.place.error(cause));
                    }
                    continue;
                }
            };
            for (side, text) in sides {
                let (cause, place) = match count((number, side)) {
                    1 => continue,
                    0 => (format!("no link ends at '{text}': add a [[link]]"), station.place),
                    links => {
                        let last =
                            self.links.iter().rfind(|link| link.ends.contains(&(number, side)));
                        let cause = format!(
                            "{links} links end at '{text}', which has one port: put a [[switch]] \
                             between"
                        );
                        (cause, last.map_or(station.place, |link| link.place))
                    }
                };
                return Err(place.error(cause));
            }
        }
        Ok(())
    }

    /// Refuses loops, in which switches would flood frames endlessly. Paths between two boxes with
    /// a transport are not a loop.
    fn check_loops(&self) -> Result<(), FileError> {
        let mut group: Vec<usize> = (0..self.stations.len()).collect();
        for link in &self.links {
            let [one, other] = link.ends.map(|(station, _)| group[station]);
            let is_whole = |(at, _): &(usize, Side)| match &self.stations[*at].draft {
                Draft::Accelerator(settings) => settings.is_whole(),
                _ => false,
            };
            if one == other && link.ends.iter().all(is_whole) {
                continue;
            }
            if one == other {
                let cause = format!(
                    "link '{}' closes a loop, in which frames would circle: take it out",
                    link.name
                );
                return Err(link.place.error(cause));
            }
            group.iter_mut().filter(|of| **of == other).for_each(|of| *of = one);
        }
        Ok(())
    }

    /// Derives rates: a link has that of its slower end, a switch that of its fastest link.
    fn decide_rates(&mut self) {
        let own_rate = |station: &Station<'_>| match &station.draft {
            Draft::Host(profile) => BitRate::from_bps(profile.rate_bps),
            Draft::Switch { rate, .. } => *rate,
            Draft::Accelerator(_) => None,
        };
        // Links between switches need a second pass.
        for _pass in 0..2 {
            for link in self.links.iter_mut().filter(|link| link.rate.is_none()) {
                link.rate =
                    link.ends.iter().filter_map(|(at, _)| own_rate(&self.stations[*at])).min();
            }
            for (number, station) in self.stations.iter_mut().enumerate() {
                let Draft::Switch { rate: rate @ None, .. } = &mut station.draft else { continue };
                let links =
                    self.links.iter().filter(|link| link.ends.iter().any(|end| end.0 == number));
                *rate = links.filter_map(|link| link.rate).max();
            }
        }
    }

    /// Returns a link's rate, which must not exceed that of the NICs at its ends.
    fn rate(&self, link: &Link<'_>) -> Result<BitRate, FileError> {
        let name = &link.name;
        let Some(rate) = link.rate else {
            let cause = format!(
                "link '{name}' has no rate, and neither have its ends: add rate = \"100G\""
            );
            return Err(link.place.error(cause));
        };
        for (at, _) in link.ends {
            if let Station { name: host, draft: Draft::Host(profile), .. } = &self.stations[at]
                && profile.rate_bps < rate.as_bps()
            {
                let (nic, most) = (&profile.name, profile.rate_bps as f64 / 1e9);
                let cause = format!(
                    "{rate} on link '{name}' is more than the {most}G of host '{host}' (NIC \
                     {nic}): lower it, or give a faster NIC, as in nic = {{ profile = \"{nic}\", \
                     rate_bps = \"400G\" }}"
                );
                return Err(link.rate_place.error(cause));
            }
        }
        Ok(rate)
    }

    fn finish(mut self) -> Result<Network<'a>, FileError> {
        self.decide_rates();
        let (mut cables, mut links) = (Vec::new(), Vec::new());
        for link in &self.links {
            let mut wire = LinkConfig { rate: Some(self.rate(link)?), ..link.wire.clone() };
            // Losses apply to frames sent by the first end of a cable.
            let (first, loss_toward_second_only) = match link.loses {
                [false, true] => (1, true),
                [_, backward] => (0, !backward && wire.loss > 0.0),
            };
            let ends = [link.ends[first], link.ends[1 - first]];
            for rule in &mut wire.rules {
                // Side a is the end that the file names first.
                rule.selection.from = rule.selection.from.map(|side| side ^ first);
            }
            cables.push(Cable { ends, wire, loss_toward_second_only });
            links.push(LinkPlan { name: link.name.clone(), first, record: link.record.clone() });
        }
        let (mut stations, mut settings, mut flow_controls) = (Vec::new(), Vec::new(), Vec::new());
        for (number, station) in self.stations.into_iter().enumerate() {
            let (kind, open) = match station.draft {
                Draft::Host(profile) => (StationKind::Host(*profile), None),
                // Its configuration is derived from its links and the flows.
                Draft::Accelerator(open) => (StationKind::Box(Box::default()), Some(open)),
                Draft::Switch { rate, queue_bytes, ecn, pfc, .. } => {
                    let links =
                        cables.iter().flat_map(|it: &Cable| it.ends.map(|end| (end, it.wire.rate)));
                    let mut ports: Vec<_> = links.filter(|(end, _)| end.0 == number).collect();
                    ports.sort_by_key(|((_, port), _)| *port);
                    let Some(rate) = rate else {
                        let cause = format!(
                            "switch '{}' has no rate, and neither have its links",
                            station.name
                        );
                        return Err(station.place.error(cause));
                    };
                    let plain = SwitchConfig::new(ports.len(), rate);
                    let port_rates = ports
                        .iter()
                        .map(|(_, link)| link.map_or(rate, |link| link.min(rate)))
                        .collect();
                    flow_controls.extend(pfc.map(|pfc| (number, rate, pfc)));
                    (
                        StationKind::Switch(SwitchConfig { port_rates, queue_bytes, ecn, ..plain }),
                        None,
                    )
                }
            };
            stations.push(StationPlan { name: station.name, kind });
            settings.push(open);
        }
        let names: Vec<String> = links.iter().map(|link| link.name.clone()).collect();
        for (number, rate, pfc) in flow_controls {
            // It is derived from the stations at the other ends.
            let pfc = pfc.config(number, rate, &stations, &cables, &names)?;
            if let StationKind::Switch(config) = &mut stations[number].kind {
                config.pfc = Some(pfc);
            }
        }
        Ok(Network { stations, settings, cables, links })
    }
}

/// A `[[link]]`, or the fibre of a `[path]`.
fn link<'a>(
    fields: &Fields<'a>,
    name: String,
    ends: [(usize, Side); 2],
) -> Result<Link<'a>, FileError> {
    let fibre = match (fields.whole("distance"), fields.time("delay")) {
        (Some(_), Some(_)) => {
            return Err(fields.error("delay", "both a distance and a delay: take one of them out"));
        }
        (Some(metres), None) => Duration::of_fibre_m(metres),
        (None, Some(delay)) => delay,
        (None, None) => SHORT,
    };
    let queue_bytes = fields.whole("queue").unwrap_or(LinkConfig::default().queue_bytes);
    let loses = match fields.text("loss_direction") {
        Some(_) if !fields.has("loss") => {
            return Err(
                fields.error("loss_direction", "a direction of losses without 'loss': add it")
            );
        }
        Some("forward") => [true, false],
        Some("backward") => [false, true],
        _ => [true; 2],
    };
    Ok(Link {
        name,
        place: fields.place,
        ends,
        rate: fields.rate("rate"),
        rate_place: fields.place_of("rate"),
        wire: LinkConfig {
            delay: fibre + fields.time("extra_delay").unwrap_or(Duration::ZERO),
            loss: fields.real("loss").unwrap_or(0.0),
            bursts: bursts(fields)?,
            cut: cut(fields)?,
            impairments: impairments(fields)?,
            rules: listed(fields, "rule")?,
            changes: listed(fields, "at")?,
            queue_bytes,
            ecn: marking(fields, queue_bytes),
            ..LinkConfig::default()
        },
        loses,
        record: fields.text("record").map(str::to_owned),
    })
}

/// Reads the burst settings of losses.
fn bursts(fields: &Fields<'_>) -> Result<Option<Bursts>, FileError> {
    for (key, other) in [("loss_burst", "loss"), ("loss_in_burst", "loss_burst")] {
        if fields.has(key) && !fields.has(other) {
            return Err(fields.error(key, format!("'{key}' without '{other}': add it")));
        }
    }
    let frames = fields.whole("loss_burst").map(|frames| frames as f64);
    Ok(frames.map(|frames| Bursts { frames, loss: fields.real("loss_in_burst").unwrap_or(1.0) }))
}

/// Reads the cuts of the fibre.
fn cut(fields: &Fields<'_>) -> Result<Option<Cut>, FileError> {
    for (key, other) in [("cut_for", "cut_at"), ("cut_every", "cut_for")] {
        if fields.has(key) && !fields.has(other) {
            return Err(fields.error(key, format!("'{key}' without '{other}': add it")));
        }
    }
    let (lasts, every) = (fields.time("cut_for"), fields.time("cut_every"));
    Ok(fields.time("cut_at").map(|at| Cut {
        at: Instant::ZERO + at,
        lasts: lasts.unwrap_or(Duration::from_ps(u64::MAX)),
        every,
    }))
}

/// Reads impairments other than loss.
fn impairments(fields: &Fields<'_>) -> Result<Impairments, FileError> {
    if fields.has("reorder_delay") && !fields.has("reorder") {
        return Err(fields
            .error("reorder_delay", "a delay of frames that are late without 'reorder': add it"));
    }
    Ok(Impairments {
        late: fields.real("reorder").unwrap_or(0.0),
        late_by: fields.time("reorder_delay").unwrap_or(Impairments::LATE_BY),
        duplication: fields.real("duplicate").unwrap_or(0.0),
        corruption: fields.real("corrupt").unwrap_or(0.0),
    })
}

/// Reads rules or changes, separated by semicolons.
fn listed<T: FromStr<Err = TextError>>(
    fields: &Fields<'_>,
    key: &str,
) -> Result<Vec<T>, FileError> {
    let texts = fields.text(key).unwrap_or_default().split(';').map(str::trim);
    texts
        .filter(|text| !text.is_empty())
        .map(|text| text.parse().map_err(|e| fields.error(key, e)))
        .collect()
}

fn marking(fields: &Fields<'_>, queue_bytes: u64) -> Option<RedConfig> {
    // The syntax was checked before.
    match ecn(fields.text("ecn")?).ok()? {
        Ecn::Off => None,
        Ecn::OfQueue => Some(RedConfig::for_queue(queue_bytes)),
        Ecn::Of(kmin_bytes, kmax_bytes, pmax) => Some(RedConfig { kmin_bytes, kmax_bytes, pmax }),
    }
}
