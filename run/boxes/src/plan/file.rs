//! The configuration file of a box. Errors name the line, and for an unknown key the nearest known
//! one.

use super::{Pair, PlanError, Settings, pair_name};
use crate::carrier::Bypass;
use crate::error::PathError;
use crate::journal::Form;
use crate::port::{Dpdk, PortName};
use longhaul_health::Address;
use serde::de::value::Error as KeysFound;
use serde::de::{Deserializer, Error as _, Visitor};
use serde::{Deserialize, forward_to_deserialize_any};
use std::iter::once;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

/// Contents of a file.
pub(super) struct File<S> {
    pub process: OfProcess,
    pub dpdk: Dpdk,
    pub bypass: Option<Bypass>,
    pub pairs: Vec<Pair<S>>,
}

/// Keys above all tables.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct OfProcess {
    pub name: Option<String>,
    pub user: Option<String>,
    pub keep_privileges: bool,
    pub control: Option<PathBuf>,
    pub health: Option<Address>,
    pub log: Option<Form>,
    pub pcap_frames: Option<u64>,
}

impl<S> Default for File<S> {
    fn default() -> Self {
        let (process, dpdk) = (OfProcess::default(), Dpdk::default());
        File { process, dpdk, bypass: None, pairs: Vec::new() }
    }
}

/// Reads a file. `above` are the settings of the command line, which take precedence.
pub(super) fn read<S: Settings>(
    path: &Path,
    sides: [&str; 2],
    above: &S,
) -> Result<File<S>, PlanError> {
    let text = std::fs::read_to_string(path).map_err(|e| PathError::new("read", path, e))?;
    parse(&text, sides, above).map_err(|fault| PlanError::File {
        path: path.to_owned(),
        line: fault.line(&text),
        message: fault.message,
    })
}

fn parse<S: Settings>(text: &str, sides: [&str; 2], above: &S) -> Result<File<S>, Fault> {
    let document = DeTable::parse(text)?;
    let mut top = Section { header: TOP, place: Place(0), table: document.into_inner() };
    let defaults = top.take_table("[defaults]")?;
    let dpdk = top.take_table("[dpdk]")?;
    let bypass = top.take_table("[bypass]")?;
    let policy = top.take_tables("[[policy]]")?;
    let far = top.take_tables("[[far]]")?;
    let pairs = top.take_tables("[[pair]]")?;
    let known = Known::new::<S>(sides);
    for section in once(&top).chain(&defaults).chain(&dpdk).chain(&bypass).chain(&pairs) {
        known.check(section)?;
    }
    let mut below = defaults.map_or_else(|| Ok(S::default()), Section::read::<S>)?;
    if !policy.is_empty() {
        below.take_policy(policy)?;
    }
    if !far.is_empty() {
        below.take_far(far)?;
    }
    let pair = |section: Section<'_>| section.into_pair(sides, above, &below);
    Ok(File {
        pairs: pairs.into_iter().map(pair).collect::<Result<_, Fault>>()?,
        dpdk: dpdk.map_or_else(|| Ok(Dpdk::default()), Section::read)?,
        bypass: bypass.map(Section::read).transpose()?,
        process: top.read()?,
    })
}

/// Byte offset in a file.
#[derive(Clone, Copy, Debug)]
pub struct Place(usize);

impl Place {
    fn of<T>(spanned: &Spanned<T>) -> Self {
        Place(spanned.span().start)
    }

    /// A fault at this place.
    pub fn fault(self, message: impl Into<String>) -> Fault {
        Fault { place: self, message: message.into() }
    }
}

/// A fault in a file.
#[derive(Debug)]
pub struct Fault {
    place: Place,
    message: String,
}

impl Fault {
    fn of_key(self, key: &str) -> Self {
        Fault { message: format!("{key}: {}", self.message), ..self }
    }

    fn line(&self, text: &str) -> usize {
        1 + text.bytes().take(self.place.0).filter(|byte| *byte == b'\n').count()
    }
}

impl From<toml::de::Error> for Fault {
    fn from(error: toml::de::Error) -> Self {
        let place = Place(error.span().map_or(0, |span| span.start));
        place.fault(error.message().lines().collect::<Vec<_>>().join("; "))
    }
}

/// Name of the top level in messages.
const TOP: &str = "the file's top";

/// One table of a file.
pub struct Section<'i> {
    /// Header as written: `[[pair]]`.
    header: &'static str,
    /// Its first byte.
    pub place: Place,
    table: DeTable<'i>,
}

impl<'i> Section<'i> {
    fn of(header: &'static str, value: Spanned<DeValue<'i>>) -> Result<Self, Fault> {
        let place = Place::of(&value);
        match value.into_inner() {
            DeValue::Table(table) => Ok(Section { header, place, table }),
            _ => Err(place.fault(format!("write {header} and its keys below it"))),
        }
    }

    /// Deserialises the table into a struct whose fields are its keys.
    ///
    /// # Errors
    /// If the table has an unknown key, lacks one, or has a value of the wrong type.
    pub fn read<T: Deserialize<'i>>(self) -> Result<T, Fault> {
        let Section { header, place, table } = self;
        let keys = keys_of::<T>();
        if let Some(key) = table.keys().find(|key| !keys.contains(&&**key.get_ref())) {
            return Err(unknown(header, key, keys));
        }
        let values = table.iter().map(|(key, value)| (value.span(), key.get_ref().to_string()));
        let values: Vec<(Range<usize>, String)> = values.collect();
        let table = Spanned::new(place.0..place.0, DeValue::Table(table));
        T::deserialize(ValueDeserializer::from(table)).map_err(|error| {
            let fault = Fault::from(error);
            let of = values.iter().find(|(span, _)| span.contains(&fault.place.0));
            fault.of_key(of.map_or(header, |(_, key)| key))
        })
    }

    /// Takes the only table with this header.
    fn take_table(&mut self, header: &'static str) -> Result<Option<Section<'i>>, Fault> {
        let value = self.table.remove(header.trim_matches(['[', ']']));
        value.map(|value| Section::of(header, value)).transpose()
    }

    /// Takes all tables with this header.
    fn take_tables(&mut self, header: &'static str) -> Result<Vec<Section<'i>>, Fault> {
        let Some(value) = self.table.remove(header.trim_matches(['[', ']'])) else {
            return Ok(Vec::new());
        };
        let place = Place::of(&value);
        let DeValue::Array(tables) = value.into_inner() else {
            return Err(place.fault(format!("write {header}: there may be several")));
        };
        tables.into_iter().map(|value| Section::of(header, value)).collect()
    }

    /// Takes a string, or a list of strings.
    fn take_texts(&mut self, key: &str) -> Result<Option<Texts>, Fault> {
        let Some(value) = self.table.remove(key) else { return Ok(None) };
        let (place, is_list) = (Place::of(&value), value.get_ref().is_array());
        let from = ValueDeserializer::from(value);
        let texts = match is_list {
            true => Vec::deserialize(from),
            false => Spanned::deserialize(from).map(|text| vec![text]),
        };
        let texts = texts.map_err(|error| Fault::from(error).of_key(key))?;
        Ok(Some(Texts { place, is_list, texts }))
    }

    /// Takes a string.
    fn take_text(&mut self, key: &str) -> Result<Option<Spanned<String>>, Fault> {
        let value = self.table.remove(key).map(ValueDeserializer::from);
        let text = value.map(Spanned::deserialize).transpose();
        text.map_err(|error| Fault::from(error).of_key(key))
    }

    fn into_pair<S: Settings>(
        mut self,
        sides: [&str; 2],
        above: &S,
        below: &S,
    ) -> Result<Pair<S>, Fault> {
        let [one, other] = sides;
        let [no_first, no_second] =
            sides.map(|side| self.place.fault(format!("[[pair]] has no '{side}': name a port")));
        let first = port(one, &self.take_text(one)?.ok_or(no_first)?)?;
        let second = self.take_texts(other)?.ok_or(no_second)?;
        let place = second.place;
        let second = second.texts.iter().map(|text| port(other, text));
        let second: Vec<PortName> = second.collect::<Result<_, Fault>>()?;
        let mut pcaps = vec![self.take_text(&pcap_key(one))?.map(path)];
        pcaps.extend(self.take_pcaps(other, second.len())?);
        let name = self.take_text("name")?.map(Spanned::into_inner);
        let settings = above.over(&self.read()?).over(below);
        settings
            .allows(second.len())
            .map_err(|why| place.fault(format!("'{other}' has {} ports: {why}", second.len())))?;
        Ok(Pair {
            name: name.unwrap_or_else(|| pair_name(&first, &second)),
            ports: once(first).chain(second).collect(),
            pcaps,
            settings,
        })
    }

    /// Recordings of the second side's `ports` ports: one path, for the first port, or a list.
    fn take_pcaps(&mut self, side: &str, ports: usize) -> Result<Vec<Option<PathBuf>>, Fault> {
        let key = pcap_key(side);
        let Some(Texts { place, is_list, texts }) = self.take_texts(&key)? else {
            return Ok(vec![None; ports]);
        };
        if is_list && texts.len() != ports {
            return Err(
                place.fault(format!("{key}: {} paths for {ports} of '{side}'", texts.len()))
            );
        }
        let mut pcaps: Vec<_> = texts.into_iter().map(|text| Some(path(text))).collect();
        pcaps.resize(ports, None);
        Ok(pcaps)
    }
}

/// Value of a key that takes a string or a list of strings.
struct Texts {
    place: Place,
    is_list: bool,
    texts: Vec<Spanned<String>>,
}

fn port(side: &str, text: &Spanned<String>) -> Result<PortName, Fault> {
    text.get_ref().parse().map_err(|e| Place::of(text).fault(format!("{side}: {e}")))
}

fn path(text: Spanned<String>) -> PathBuf {
    text.into_inner().into()
}

fn pcap_key(side: &str) -> String {
    format!("pcap_{side}")
}

/// Tables that a file can have, with their keys.
struct Known(Vec<(&'static str, Vec<String>)>);

impl Known {
    fn new<S: Settings>(sides: [&str; 2]) -> Self {
        let owned = |keys: &[&str]| keys.iter().map(|key| key.to_string()).collect::<Vec<_>>();
        let of_pair = [owned(&["name"]), owned(&sides), sides.map(pcap_key).to_vec()].concat();
        let tables = owned(&["defaults", "dpdk", "bypass", "policy", "far", "pair"]);
        Known(vec![
            (TOP, [owned(keys_of::<OfProcess>()), tables].concat()),
            ("[defaults]", owned(keys_of::<S>())),
            ("[[pair]]", [of_pair, owned(keys_of::<S>())].concat()),
            ("[dpdk]", owned(keys_of::<Dpdk>())),
            ("[bypass]", owned(keys_of::<Bypass>())),
        ])
    }

    /// Refuses a key that the section does not have. If another table has it, the error says so: a
    /// key on the wrong side of a header is a common mistake.
    fn check(&self, section: &Section<'_>) -> Result<(), Fault> {
        let keys = self.0.iter().filter(|(header, _)| *header == section.header);
        let keys: Vec<&str> = keys.flat_map(|(_, keys)| keys).map(String::as_str).collect();
        for key in section.table.keys() {
            let name = &**key.get_ref();
            if keys.contains(&name) {
                continue;
            }
            let has_it = self.0.iter().filter(|(_, keys)| keys.iter().any(|one| one == name));
            let tables: Vec<&str> = has_it.map(|(header, _)| *header).collect();
            if tables.is_empty() {
                return Err(unknown(section.header, key, &keys));
            }
            return Err(
                Place::of(key).fault(format!("'{name}' belongs in {}", tables.join(" or ")))
            );
        }
        Ok(())
    }
}

fn unknown(header: &str, key: &Spanned<impl AsRef<str>>, known: &[&str]) -> Fault {
    let name = key.get_ref().as_ref();
    let hint = match nearest(name, known) {
        Some(nearest) => format!("did you mean '{nearest}'?"),
        None => format!("its keys are {}", known.join(", ")),
    };
    Place::of(key).fault(format!("{header} has no key '{name}'; {hint}"))
}

/// The most similar of `known`, if it differs from `word` in less than half.
fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let with_distance = known.iter().map(|one| (strsim::damerau_levenshtein(word, one), *one));
    let (distance, nearest) = with_distance.min()?;
    (2 * distance < word.chars().count()).then_some(nearest)
}

/// Names of the keys that a struct deserialises from.
fn keys_of<'de, T: Deserialize<'de>>() -> &'static [&'static str] {
    let mut keys = Keys(&[]);
    // The error only ends the deserialisation once the keys are known.
    let _ = T::deserialize(&mut keys);
    keys.0
}

struct Keys(&'static [&'static str]);

impl<'de> Deserializer<'de> for &mut Keys {
    type Error = KeysFound;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, KeysFound> {
        self.0 = fields;
        Err(KeysFound::custom("keys"))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, KeysFound> {
        Err(KeysFound::custom("no struct"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}
