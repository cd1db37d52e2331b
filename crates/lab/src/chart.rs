//! Line charts as SVG text.

use crate::report::number;
use std::fmt::Write as _;

/// How an axis maps values to places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Equal steps are equal distances; starts at zero.
    Linear,
    /// Equal factors are equal distances.
    Log,
}

/// A line chart.
#[derive(Clone, Debug)]
pub struct Chart {
    file: &'static str,
    title: String,
    x: (String, Scale),
    y: (String, Scale),
    series: Vec<(String, Vec<(f64, f64)>)>,
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 220.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 52.0;
/// Told apart also by people who do not see red and green as different (Okabe and Ito's palette).
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"];

impl Chart {
    /// An empty chart that is written to `file`; each axis has a label with its unit.
    pub fn new(
        file: &'static str,
        title: impl Into<String>,
        x: (impl Into<String>, Scale),
        y: (impl Into<String>, Scale),
    ) -> Self {
        Self { file, title: title.into(), x: (x.0.into(), x.1), y: (y.0.into(), y.1), series: Vec::new() }
    }

    /// Adds a line through `points`, in order.
    pub fn series(&mut self, name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) {
        self.series.push((name.into(), points.into_iter().collect()));
    }

    /// The name of its file.
    pub fn file(&self) -> &'static str {
        self.file
    }

    /// Its title.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// The picture.
    pub fn svg(&self) -> String {
        let xs = Axis::over(self.x.1, self.series.iter().flat_map(|(_, points)| points.iter().map(|p| p.0)));
        let ys = Axis::over(self.y.1, self.series.iter().flat_map(|(_, points)| points.iter().map(|p| p.1)));
        let place_x = |x: f64| LEFT + xs.place(x) * (WIDTH - LEFT - RIGHT);
        let place_y = |y: f64| HEIGHT - BOTTOM - ys.place(y) * (HEIGHT - TOP - BOTTOM);
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
             font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
             <text x=\"{LEFT}\" y=\"24\" font-size=\"15\" fill=\"#000000\">{}</text>\n",
            escaped(&self.title)
        );
        for tick in xs.ticks() {
            let x = place_x(tick);
            let (top, bottom) = (TOP, HEIGHT - BOTTOM);
            let _ = writeln!(
                out,
                "<path d=\"M{x:.1} {top}V{bottom}\" stroke=\"#dddddd\"/><text x=\"{x:.1}\" y=\"{:.1}\" \
                 text-anchor=\"middle\" fill=\"#333333\">{}</text>",
                bottom + 18.0,
                number(tick)
            );
        }
        for tick in ys.ticks() {
            let y = place_y(tick);
            let (left, right) = (LEFT, WIDTH - RIGHT);
            let _ = writeln!(
                out,
                "<path d=\"M{left} {y:.1}H{right}\" stroke=\"#dddddd\"/><text x=\"{:.1}\" y=\"{:.1}\" \
                 text-anchor=\"end\" fill=\"#333333\">{}</text>",
                left - 6.0,
                y + 4.0,
                number(tick)
            );
        }
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#000000\">{}</text>\n\
             <text transform=\"translate(16 {:.1}) rotate(-90)\" text-anchor=\"middle\" fill=\"#000000\">{}</text>",
            (LEFT + WIDTH - RIGHT) / 2.0,
            HEIGHT - 12.0,
            escaped(&self.x.0),
            (TOP + HEIGHT - BOTTOM) / 2.0,
            escaped(&self.y.0)
        );
        for (index, (name, points)) in self.series.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let mut path = String::new();
            for (i, &(x, y)) in points.iter().enumerate() {
                let _ = write!(path, "{}{:.1} {:.1}", if i == 0 { "M" } else { "L" }, place_x(x), place_y(y));
            }
            let (left, y) = (WIDTH - RIGHT + 14.0, TOP + 10.0 + 20.0 * index as f64);
            let _ = writeln!(
                out,
                "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" stroke-linejoin=\"round\"/>\n\
                 <path d=\"M{left} {y}h18\" stroke=\"{colour}\" stroke-width=\"3\"/>\
                 <text x=\"{}\" y=\"{}\" fill=\"#000000\">{}</text>",
                left + 24.0,
                y + 4.0,
                escaped(name)
            );
        }
        out + "</svg>\n"
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The range of one axis.
struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
}

impl Axis {
    fn over(scale: Scale, values: impl Iterator<Item = f64>) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|value| scale == Scale::Linear || *value > 0.0) {
            low = low.min(value);
            high = high.max(value);
        }
        if low > high {
            (low, high) = (1.0, 10.0);
        }
        match scale {
            Scale::Linear => {
                Self { scale, low: low.min(0.0), high: if high > low.min(0.0) { high } else { low + 1.0 } }
            }
            Scale::Log => {
                let (low, high) = (10f64.powf(low.log10().floor()), 10f64.powf(high.log10().ceil()));
                Self { scale, low, high: if high > low { high } else { low * 10.0 } }
            }
        }
    }

    /// 0 at the low end, 1 at the high one; what lies outside is drawn at the edge.
    fn place(&self, value: f64) -> f64 {
        let place = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value.max(self.low) / self.low).ln() / (self.high / self.low).ln(),
        };
        place.clamp(0.0, 1.0)
    }

    fn ticks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Linear => {
                // Steps of 1, 2 or 5 times a power of ten, at most seven of them.
                let rough = (self.high - self.low) / 6.0;
                let power = 10f64.powf(rough.log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|s| *s >= rough);
                let step = step.unwrap_or(10.0 * power);
                let first = (self.low / step).ceil();
                (0..8)
                    .map(|i| (first + f64::from(i)) * step)
                    .take_while(|tick| *tick <= self.high * 1.000_001)
                    .collect()
            }
            Scale::Log => {
                let decades = (self.high / self.low).log10().round() as i32;
                (0..=decades).map(|i| self.low * 10f64.powi(i)).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_map_their_ends_to_the_edges() {
        let linear = Axis::over(Scale::Linear, [2.0, 40.0].into_iter());
        assert_eq!((linear.place(0.0), linear.place(40.0)), (0.0, 1.0));
        assert_eq!(linear.ticks(), [0.0, 10.0, 20.0, 30.0, 40.0]);
        let log = Axis::over(Scale::Log, [3.0, 900.0].into_iter());
        assert_eq!((log.place(1.0), log.place(1000.0)), (0.0, 1.0));
        assert_eq!(log.ticks().len(), 4);
    }

    #[test]
    fn a_chart_without_points_still_draws() {
        assert!(
            Chart::new("e.svg", "<empty>", ("x", Scale::Log), ("y", Scale::Linear))
                .svg()
                .contains("&lt;empty&gt;")
        );
    }
}
