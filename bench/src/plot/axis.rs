//! Axes with round numbers in units that people read.

use crate::quantity::{Quantity, Unit, significant};
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use std::ops::{Range, RangeInclusive};

/// Values that span this factor get a logarithmic axis.
pub(super) const LOG_FROM: f64 = 20.0;
/// Sizes, which double, and small fractions do from this factor.
const LOG_DENSE_FROM: f64 = 4.0;
/// Plain numbers below this are fractions, such as rates of loss.
const FRACTION: f64 = 0.1;
/// Fractions below this are written as powers of ten.
const SMALL: f64 = 0.01;
/// Distances between two ticks at the data's own values, as shares of the axis.
const OWN_TICKS_APART: RangeInclusive<f64> = 0.09..=0.45;
/// Values that span this factor have ticks with a unit each.
const OWN_UNITS_FROM: f64 = 2e5;
/// Ticks on an axis, about.
const TICKS_MAX: i32 = 8;
/// The same, where each has its unit.
const LONG_TICKS_MAX: i32 = 6;
/// Characters of a name that fit beside the shorter axis, with a unit.
const LABEL_CHARACTERS_MAX: usize = 34;
/// Characters that fit below an axis, beside the longest names of series.
const ROOM_CHARACTERS: usize = 36;

/// How numbers become places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Equal steps.
    Linear,
    /// Equal ratios.
    Log,
}

/// One axis: its range, scale and ticks.
#[derive(Clone, Debug, PartialEq)]
pub struct PlotAxis {
    /// What it measures, with the unit unless ticks have theirs.
    pub label: String,
    /// How numbers become places.
    pub scale: Scale,
    least: f64,
    most: f64,
    ticks: Vec<(f64, String)>,
}

impl PlotAxis {
    /// An axis called `label` for `values` of what `key` names ([`Quantity::of`]). Without a
    /// `scale` it is logarithmic where they span decades and none is below zero; zero then lies at
    /// its edge. Values that are not finite are left out.
    pub fn of(
        key: &str,
        label: &str,
        values: impl IntoIterator<Item = f64>,
        scale: Option<Scale>,
    ) -> Self {
        let values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let (least, most) = if least <= most { (least, most) } else { (0.0, 1.0) };
        let above_zero =
            values.iter().copied().filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min);
        let quantity = Quantity::of(key);
        let is_dense = quantity.is_binary() || (quantity.is_count() && most < FRACTION);
        let log_from = if is_dense { LOG_DENSE_FROM } else { LOG_FROM };
        let scale = match scale {
            _ if least < 0.0 || most <= 0.0 => Scale::Linear,
            Some(scale) => scale,
            None if most / above_zero >= log_from => Scale::Log,
            None => Scale::Linear,
        };
        match scale {
            Scale::Log => Self::log(&quantity, label, &values),
            Scale::Linear => Self::linear(&quantity, label, least, most),
        }
    }

    /// An axis with a place for each of `names`: 0, 1, 2 and so on.
    pub fn of_names(label: &str, names: &[String]) -> Self {
        // Where they do not fit they are shortened, and beyond that left out evenly.
        let room = (ROOM_CHARACTERS / names.len().max(1)).max(5);
        let step = (names.len() * 6).div_ceil(ROOM_CHARACTERS).max(1);
        let ticks = names.iter().enumerate().step_by(step);
        let ticks =
            ticks.map(|(i, name)| (i as f64, shortened(name, room.saturating_sub(1)))).collect();
        let most = names.len().max(1) as f64 - 0.5;
        PlotAxis {
            label: shortened(label, LABEL_CHARACTERS_MAX),
            scale: Scale::Linear,
            least: -0.5,
            most,
            ticks,
        }
    }

    /// `values` are finite, none is below zero and one is above it.
    fn log(quantity: &Quantity, label: &str, values: &[f64]) -> Self {
        let most = values.iter().copied().fold(0.0, f64::max);
        let least = values.iter().copied().filter(|v| *v > 0.0).fold(f64::INFINITY, f64::min);
        let has_zero = values.contains(&0.0);
        let unit = quantity.unit(most);
        let own = own_ticks(quantity, &unit, values);
        let steps: Vec<f64> = if let Some(own) = own {
            own
        } else if quantity.is_binary() {
            powers_of_two(least, most)
        } else {
            let ticks_max = if most / least > OWN_UNITS_FROM { LONG_TICKS_MAX } else { TICKS_MAX };
            let ratios = round_ratios(least / unit.divisor, most / unit.divisor, ticks_max);
            ratios.map(|tick| tick * unit.divisor).collect()
        };
        let steps = if steps.len() < 2 { vec![least, most] } else { steps };
        // A little beyond the data, so that markers are whole.
        let margin = (most / least).powf(0.03).max(1.05);
        let has_own = quantity.is_binary() || most / least > OWN_UNITS_FROM;
        let text = |tick: f64| match has_own {
            true => quantity.humanised(tick),
            false if quantity.is_count() && least < SMALL => quantity.humanised(tick),
            false => significant(tick / unit.divisor, 3),
        };
        let mut ticks: Vec<_> = steps.into_iter().map(|tick| (tick, text(tick))).collect();
        let label = with_unit(label, &unit, has_own);
        let most = most * margin;
        let mut least = least / margin;
        if has_zero {
            least /= (most / least).powf(0.12);
            ticks.insert(0, (0.0, "0".to_owned()));
        }
        PlotAxis { label, scale: Scale::Log, least, most, ticks }
    }

    fn linear(quantity: &Quantity, label: &str, least: f64, most: f64) -> Self {
        let unit = quantity.unit(least.abs().max(most.abs()));
        let (mut least, mut most) = (least / unit.divisor, most / unit.divisor);
        // From zero, unless the data are far from it: then their differences are what is to be
        // seen.
        if least > 0.0 && least < 0.6 * most {
            least = 0.0;
        }
        if most < 0.0 && most > 0.6 * least {
            most = 0.0;
        }
        let span = if most > least { most - least } else { most.abs().max(1.0) * 0.2 };
        if least != 0.0 {
            least -= 0.04 * span;
        }
        most += 0.04 * span;
        let step = round_step((most - least) / 6.0);
        let first = (least / step).ceil() as i64;
        let last = (most / step).floor() as i64;
        let digits = (-step.log10().floor()).max(0.0) as usize;
        let digits = if (step * 10_f64.powi(digits as i32)).fract().abs() > 1e-6 {
            digits + 1
        } else {
            digits
        };
        let ticks = (first..=last).map(|i| {
            let tick = i as f64 * step;
            let is_small = quantity.is_count() && most < SMALL;
            let is_long = tick.abs() >= 1e6;
            (
                tick * unit.divisor,
                if is_small {
                    quantity.humanised(tick)
                } else if is_long {
                    significant(tick * 1.000_000_1, 3)
                } else {
                    format!("{tick:.digits$}")
                },
            )
        });
        PlotAxis {
            label: with_unit(label, &unit, false),
            scale: Scale::Linear,
            ticks: ticks.collect(),
            least: least * unit.divisor,
            most: most * unit.divisor,
        }
    }

    /// Text of the longest tick, in characters.
    pub(super) fn widest(&self) -> usize {
        self.ticks.iter().map(|(_, text)| text.chars().count()).max().unwrap_or(0)
    }
}

/// At most so many characters of `name`.
pub(super) fn shortened(name: &str, most: usize) -> String {
    match name.char_indices().nth(most) {
        Some((at, _)) => format!("{}…", name[..at].trim_end()),
        None => name.to_owned(),
    }
}

fn with_unit(label: &str, unit: &Unit, ticks_have_it: bool) -> String {
    let label = &shortened(label, LABEL_CHARACTERS_MAX);
    match unit.name {
        "" => label.to_owned(),
        _ if ticks_have_it => label.to_owned(),
        name => format!("{label} ({name})"),
    }
}

/// 1, 2 or 5 times a power of ten: the first at or above `least`.
fn round_step(least: f64) -> f64 {
    let power = 10_f64.powf(least.log10().floor());
    let factor =
        [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|factor| factor * power >= least * 0.999);
    factor.unwrap_or(10.0) * power
}

/// The data's own values as ticks, where they are few, round and far enough apart.
fn own_ticks(quantity: &Quantity, unit: &Unit, values: &[f64]) -> Option<Vec<f64>> {
    let mut ticks: Vec<f64> = values.iter().copied().filter(|value| *value > 0.0).collect();
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    let is_round = |value: &f64| match quantity.is_binary() {
        true => value.log2().fract() == 0.0,
        false => {
            let value = value / unit.divisor;
            let digit = value / 10_f64.powf(value.log10().floor());
            (digit - digit.round()).abs() < 1e-9
        }
    };
    let span = (ticks.last()? / ticks.first()?).ln();
    let is_apart = |pair: &[f64]| OWN_TICKS_APART.contains(&((pair[1] / pair[0]).ln() / span));
    let fits = (3..=TICKS_MAX as usize).contains(&ticks.len())
        && ticks.iter().all(is_round)
        && ticks.windows(2).all(is_apart);
    fits.then_some(ticks)
}

/// Powers of two from `least` to `most`, evenly thinned.
fn powers_of_two(least: f64, most: f64) -> Vec<f64> {
    let (first, last) = (least.log2().ceil() as i32, most.log2().floor() as i32);
    let step = ((last - first) / (TICKS_MAX - 1) + 1).max(1);
    (first..=last)
        .filter(|power| (power - first) % step == 0)
        .map(|power| 2_f64.powi(power))
        .collect()
}

/// Powers of ten from `least` to `most`, with 2 and 5 times them where these are few.
fn round_ratios(least: f64, most: f64, ticks_max: i32) -> impl Iterator<Item = f64> {
    let (first, last) = (least.log10().floor() as i32, most.log10().ceil() as i32);
    let decades = (most / least).log10();
    let factors: &[f64] = if decades < 1.6 {
        &[1.0, 2.0, 3.0, 5.0, 7.0]
    } else if decades < 2.7 {
        &[1.0, 2.0, 5.0]
    } else {
        &[1.0]
    };
    let step = (last - first) / ticks_max + 1;
    let powers = (first..=last).filter(move |power| power.rem_euclid(step) == 0);
    let all = powers.flat_map(move |power| {
        factors.iter().map(move |factor| {
            // Division keeps 0.1 what people write.
            if power < 0 { factor / 10_f64.powi(-power) } else { factor * 10_f64.powi(power) }
        })
    });
    all.filter(move |tick| (least / 1.05..=most * 1.05).contains(tick))
}

impl Ranged for PlotAxis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = match self.scale {
            Scale::Linear => (value - self.least) / (self.most - self.least),
            // Zero, which has no place, lies at the edge.
            Scale::Log => (value / self.least).max(1.0).ln() / (self.most / self.least).ln(),
        };
        limit.0 + (share.clamp(-0.05, 1.05) * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.iter().map(|(tick, _)| *tick).collect()
    }

    fn range(&self) -> Range<f64> {
        self.least..self.most
    }
}

impl ValueFormatter<f64> for PlotAxis {
    fn format_ext(&self, value: &f64) -> String {
        let tick = self.ticks.iter().find(|(tick, _)| tick == value);
        tick.map_or(String::new(), |(_, text)| text.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(key: &str, values: &[f64], scale: Option<Scale>) -> (Scale, Vec<String>) {
        let axis = PlotAxis::of(key, "x", values.iter().copied(), scale);
        (axis.scale, axis.ticks.into_iter().map(|(_, text)| text).collect())
    }

    #[test]
    fn sizes_go_in_powers_of_two() {
        let (scale, texts) = ticks("message_bytes", &[4096.0, 8_388_608.0], None);
        assert_eq!(scale, Scale::Log);
        assert_eq!(texts, ["4 KiB", "16 KiB", "64 KiB", "256 KiB", "1 MiB", "4 MiB"]);
    }

    #[test]
    fn sizes_that_double_are_logarithmic_over_any_span() {
        let (scale, texts) = ticks("message_bytes", &[16_384.0, 262_144.0], None);
        assert_eq!(scale, Scale::Log);
        assert_eq!(texts, ["16 KiB", "32 KiB", "64 KiB", "128 KiB", "256 KiB"]);
    }

    #[test]
    fn few_round_values_have_a_tick_each_in_one_notation() {
        let losses = [0.0, 1e-5, 1e-4, 1e-3, 1e-2, 5e-2];
        let (scale, texts) = ticks("path.loss", &losses, None);
        assert_eq!(scale, Scale::Log);
        assert_eq!(texts, ["0", "1e-5", "1e-4", "1e-3", "1e-2", "5e-2"]);
        let sizes = [512.0, 4096.0, 65_536.0, 1_048_576.0];
        assert_eq!(ticks("message_bytes", &sizes, None).1, ["512 B", "4 KiB", "64 KiB", "1 MiB"]);
        let linear = ticks("path.loss", &[1e-6, 1e-5], Some(Scale::Linear)).1;
        assert_eq!((linear[0].as_str(), linear[1].as_str()), ("0", "2e-6"), "{linear:?}");
        let thousandths = ticks("path.loss", &[0.0, 1e-3], Some(Scale::Linear)).1;
        assert_eq!(thousandths.last().unwrap(), "1e-3", "{thousandths:?}");
        assert_eq!(ticks("path.loss", &[0.0, 1e-4, 1e-3], None).0, Scale::Log);
    }

    #[test]
    fn rates_over_decades_are_logarithmic_in_one_unit() {
        let (scale, texts) = ticks("goodput_bps", &[0.3e9, 98e9], None);
        assert_eq!(
            (scale, &texts[..]),
            (Scale::Log, &["0.5", "1", "2", "5", "10", "20", "50", "100"].map(str::to_owned)[..])
        );
        assert_eq!(
            PlotAxis::of("goodput_bps", "goodput", [0.3e9, 98e9], None).label,
            "goodput (Gbit/s)"
        );
    }

    #[test]
    fn what_spans_less_or_goes_below_zero_is_linear() {
        let (scale, texts) = ticks("latency_us", &[1905.0, 4523.0], None);
        assert_eq!(
            (scale, &texts[..]),
            (Scale::Linear, &["0", "1", "2", "3", "4"].map(str::to_owned)[..])
        );
        assert_eq!(ticks("distance_km", &[-1.0, 1534.0], Some(Scale::Log)).0, Scale::Linear);
        assert_eq!(ticks("x", &[5.0, 5.0], None).0, Scale::Linear);
        assert_eq!(ticks("x", &[f64::NAN], None).0, Scale::Linear);
    }

    #[test]
    fn zero_lies_at_the_edge_of_a_logarithmic_axis() {
        let axis = PlotAxis::of("distance_km", "distance", [0.0, 10.0, 1534.0], None);
        assert_eq!((axis.scale, &axis.ticks[0]), (Scale::Log, &(0.0, "0".to_owned())));
        let places = [0.0, 10.0, 1534.0].map(|km| axis.map(&km, (0, 1000)));
        assert!(places[0] == 0 && places[1] > 60 && places[2] > 900, "{places:?}");
    }

    #[test]
    fn every_axis_has_at_least_two_ticks_and_not_too_many() {
        for least in [1e-7, 3.3e-3, 0.9, 1.0, 17.0, 4.2e9] {
            for factor in [1.0, 1.001, 1.5, 3.0, 19.0, 21.0, 150.0, 999.0, 1e5, 1e9, 1e15] {
                for scale in [None, Some(Scale::Linear), Some(Scale::Log)] {
                    for key in ["goodput_bps", "message_bytes", "rtt_us", "count"] {
                        let (_, texts) = ticks(key, &[least, least * factor], scale);
                        let enough = texts.len() >= 2;
                        assert!(
                            enough && texts.len() <= 14,
                            "{key} {least} × {factor} {scale:?}: {texts:?}"
                        );
                    }
                }
            }
        }
    }
}
