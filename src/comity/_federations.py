"""The table of all natural federations.

Licences were looked up with the source, or the entry says "not checked again" or "not confirmed". This needs no torch.
"""

from collections.abc import Mapping
from dataclasses import replace

from comity._federation_columns import COLUMNS
from comity._natural import NaturalFederation

_UCI = "CC BY 4.0 (UCI Machine Learning Repository)"
_TIME = "In time order within a client: a random split would flatter."

_TABLE: dict[str, NaturalFederation] = {
    "air": NaturalFederation(
        about=(
            "a day's pollutants and weather → is tomorrow's mean PM2.5 above 75?; a client is a Beijing "
            "air-quality station"
        ),
        file="air.csv",
        sha256="a3dcd36cf1d81be85424188e45364a09d2d537b9cfaa7869df624e39edc104de",
        clients=12,
        samples=1385,
        in_time=True,
        metric="balanced",
        embedded=True,
        licence=_UCI,
        cite=(
            "Zhang, Guo, Dong, He, Xu, Chen 2017, Cautionary tales on air-quality improvement in Beijing, "
            "Proc. R. Soc. A; UCI Beijing Multi-Site Air-Quality"
        ),
        source="https://archive.ics.uci.edu/dataset/501/beijing+multi+site+air+quality+data",
        recipe=(
            "Hourly records of 2013-03 to 2017-02 averaged per day (rain summed, wind as two components, "
            "evening PM2.5 and wind added, day of year as sine and cosine); days with under 16 hourly PM2.5 "
            "values dropped; station k keeps the days with number mod 12 = k."
        ),
        traps=(
            "The 12 stations see the same smog, so each keeps only its own days. In time order within a "
            "client: a random split would flatter."
        ),
    ),
    "amazon": NaturalFederation(
        about="product review as counts of 2,000 words → negative or positive; a client is a department",
        file="amazon.npz",
        sha256="0265125a178afb011dc4daa982e54947982889b305cf1f5a2132dc0b92234b22",
        clients=4,
        samples=7852,
        kind="counts",
        licence=(
            "free for research, no formal licence (not checked again); the processed form ships in a BSD-2 repository"
        ),
        cite="Blitzer, Dredze, Pereira 2007 (ACL); processed by Chen et al. 2012, Ganin et al. 2016",
        source="https://www.cs.jhu.edu/~mdredze/datasets/sentiment/",
        recipe=(
            "The 2,000 labelled reviews of books, dvd, electronics and kitchen, the 2,000 words and pairs of "
            "words used in most reviews, 148 exact duplicates removed."
        ),
        traps="The names of the words are not known.",
    ),
    "covid": NaturalFederation(
        about=(
            "weekly growth of COVID-19 cases over four weeks, number of cases, number and growth of deaths "
            "→ do next week's cases rise?; a client is a country"
        ),
        file="covid.csv",
        sha256="a9de56dc8da4c0430c5c8f18b7e49cc9dcdaea873abef552dc8e1753cb2fc5e9",
        clients=149,
        samples=9735,
        in_time=True,
        embedded=True,
        licence="CC BY 4.0 (JHU CSSE)",
        cite="Dong, Du, Gardner 2020, Lancet Inf. Dis. 20(5):533-534; JHU CSSE COVID-19 Data",
        source="https://github.com/CSSEGISandData/COVID-19",
        recipe=(
            "National cumulative cases and deaths to 2021-07-14, non-overlapping weeks; a sample needs 20 "
            "cases in its week; countries with 45 or more weeks. No calendar column."
        ),
        traps="In time order within a client, and countries share the waves of the same weeks.",
    ),
    "digit_writers": NaturalFederation(
        about="handwritten digit, 28×28 grey → 10 classes; a client is a writer (50 clerks, 50 pupils)",
        file="digit_writers.npz",
        sha256="2edfe253fb90c770c498c1f081d6c20fe9213af5a23e95718e527f050e71990b",
        clients=100,
        samples=11_498,
        kind="images",
        licence=(
            "MNIST CC BY-SA 3.0 (not checked again), writer numbers from QMNIST, BSD; NIST Special Database "
            "19 is in the public domain"
        ),
        cite="LeCun, Cortes, Burges 1998; Yadav, Bottou 2019 (QMNIST); NIST Special Database 19",
        source="https://github.com/facebookresearch/qmnist",
        recipe=(
            "The writer numbers of QMNIST joined to the MNIST training images by position; 50 census clerks "
            "and 50 pupils drawn among the writers with 80 or more digits."
        ),
    ),
    "glucose": NaturalFederation(
        about=(
            "last glucose readings and insulin doses → is the next reading above 150 mg/dL?; a client is a "
            "diabetes patient"
        ),
        file="glucose.csv.gz",
        sha256="f21b70d454aa8c08645ee8865168283a63a054fb66635a3c8bd5166f9d70b054",
        clients=52,
        samples=12_191,
        in_time=True,
        licence=f"{_UCI}; not checked again",
        cite="Kahn, UCI Diabetes (AAAI 1994 Spring Symposium)",
        source="https://archive.ics.uci.edu/dataset/34/diabetes",
        recipe=(
            "From the 70 diaries: three last readings, mean and spread of the last 14, yesterday's at that "
            "hour, hours since, doses of three insulins, the slot of the next reading; files that share "
            "readings merged into one patient (70 files, 53 patients); patients with 40 or more samples."
        ),
        traps=_TIME,
    ),
    "ilea_schools": NaturalFederation(
        about=(
            "pupil and school (categories as 0/1 columns, two percentages) → is the exam score (1 to 70) "
            "above 20?; a client is a London school"
        ),
        file="ilea_schools.csv.gz",
        sha256="17517f57d8ed6ae46add8da6a4125f2e33f1fa1fd865416b844ad2074737b310",
        clients=139,
        samples=15_362,
        thresholds=(20,),
        metric="balanced",
        licence="distributed with MALSAR, GPL-3; ILEA data open for research (not checked again)",
        cite="Inner London Education Authority 1985-87; Bakker, Heskes 2003; Zhou, Chen, Ye 2011 (MALSAR)",
        source="https://github.com/jiayuzhou/MALSAR",
        recipe=(
            "As distributed, the constant column dropped; the names of the columns are guessed from the literature; "
            "the median score is 19."
        ),
        traps="Coarse features, so equal rows with different scores are natural.",
    ),
    "landmine": NaturalFederation(
        about="9 radar features of a spot → clutter or mine; a client is a mine field",
        file="landmine.csv",
        sha256="60f493dedc5668de4314b4c615eaf0e427085de51ec9bf0b5f421a7ae1bf71dd",
        clients=29,
        samples=2712,
        metric="balanced",
        licence="free for research, no formal licence (not checked again)",
        cite="Xue, Liao, Carin, Krishnapuram 2007, JMLR 8:35-63",
        source="LandmineData of the authors (L. Carin, Duke University)",
        recipe="All mines of each of 29 fields and twice as many clutter spots, drawn at random.",
        traps="The original has 6 % mines; here a third of the spots are mines.",
    ),
    "loans": NaturalFederation(
        about="applicant, credit history and loan → is the interest rate above 12 %?; a client is a US state",
        file="loans.csv.gz",
        sha256="4434c783719d6b457f9bb157325cb8b40d4fe5b737619efd4e4ee9dcaf4fa827",
        clients=42,
        samples=9831,
        licence="openintro package, GPL-3 (not checked again); Lending Club public statistics",
        cite="OpenIntro loans_full_schema; Lending Club, first quarter of 2018",
        source="https://www.openintro.org/data/index.php?data=loans_full_schema",
        recipe=(
            "The 10,000 loans without rate, grade, instalment, status and everything paid, which give the "
            "target away; states with 30 or more loans."
        ),
        traps="Sizes are very uneven: 33 to 1,330 loans.",
    ),
    "office": NaturalFederation(
        about="photo of an object as counts of 800 visual words (SURF) → 10 objects; a client is a photo source",
        file="office.npz",
        sha256="2bbf578169f2c9096e000e8835ab988113b90445b81f2917ea79be13eafd41dc",
        clients=4,
        samples=2507,
        kind="counts",
        licence="features free for research, no formal licence (not checked again)",
        cite="Saenko et al. 2010 (ECCV); Griffin et al. 2007 (Caltech-256); Gong et al. 2012 (GFK, CVPR)",
        source="the SURF histograms of Office and Caltech-10 by Gong et al.",
        recipe="The public histograms, 26 exact duplicates removed.",
        traps=(
            "Webcam and DSLR show the same objects several times, so local training looks too good for these "
            "two clients. No column names the object, so this cannot be mended."
        ),
    ),
    "parkinsons": NaturalFederation(
        about=(
            "16 voice measures, age and sex → motor UPDRS score in bands of 5 points; a client is a Parkinson patient"
        ),
        file="parkinsons.csv",
        sha256="e2e57e5fcf66abcb60e2cac36e05f564c19b529ff716a5c1593761a1e2e099d4",
        clients=42,
        samples=5875,
        thresholds=(15, 20, 25, 30),
        metric="balanced",
        embedded=True,
        licence=_UCI,
        cite="Tsanas, Little, McSharry, Ramig 2010, IEEE TBME; UCI Parkinsons Telemonitoring",
        source="https://archive.ics.uci.edu/dataset/189/parkinsons+telemonitoring",
        recipe=(
            "As published, without the subject number, total UPDRS and test time, which gives the target away "
            "(scores between visits are interpolated in time); the quartiles are 15, 20.9 and 27.6, and one threshold "
            "at 20 would leave 31 of 42 patients with one class."
        ),
        traps=(
            "13 of 42 patients stay in one band and have no balanced accuracy. Age and sex are constant within a "
            "client and nearly identify it. Rows pass about six times over the same days, with no column for the day, "
            "so recordings of a day fall on both sides of a split and flatter local training."
        ),
    ),
    "pisa": NaturalFederation(
        about="home background of a 15-year-old → is mathematics at level 3 or above?; a client is an OECD country",
        file="pisa.csv",
        sha256="f4282ddd278a63d692307462f8e9ee574c06cef1ef2e9aff29f71bbe5be40f04",
        clients=38,
        samples=10_981,
        metric="balanced",
        licence="learningtower package, MIT; OECD PISA data, reuse with attribution (not checked again)",
        cite="OECD PISA 2003-2022; Wang, Yacobellis, Siregar et al., learningtower",
        source="https://github.com/kevinwang09/learningtower",
        recipe=(
            "The 50 students per country and wave that learningtower samples, 2003-2022, rows with a missing "
            "answer dropped; one plausible value of mathematics."
        ),
    ),
    "rain": NaturalFederation(
        about="a day's weather → is there rain tomorrow?; a client is an Australian weather station",
        file="rain.csv.gz",
        sha256="8df5ba06cfed2f07a215523c336cf9b843055579b402a6f67f9d8002d1ed9ede",
        clients=44,
        samples=23_884,
        in_time=True,
        metric="balanced",
        licence=(
            "package rattle.data, GPL-3; © Commonwealth of Australia, Bureau of Meteorology, reuse with "
            "attribution (not checked again)"
        ),
        cite="Bureau of Meteorology; Williams 2011 (Rattle)",
        source="weatherAUS in the R package rattle.data, https://cran.r-project.org/package=rattle.data",
        recipe=(
            "Every fifth day of 2007-11 to 2017-06, the five phases dealt over the stations in alphabetical "
            "order; rows with missing values, evaporation, sunshine, cloud and RISK_MM (the target) dropped; "
            "wind directions as sine and cosine."
        ),
        traps="A fifth of the stations share a day. In time order within a client: a random split would flatter.",
    ),
    "shakespeare": NaturalFederation(
        about="10 characters of a role's lines → the next character, 29 classes; a client is a role",
        file="shakespeare.npz",
        sha256="15a80f172156ab6dd16b038f484e96de3271b7ee07c6dd71248d050b3e4a80fc",
        clients=56,
        samples=44_800,
        kind="characters",
        embedded=True,
        metric="balanced",
        licence="public domain",
        cite="Shakespeare; the text of char-rnn's tinyshakespeare",
        source="https://github.com/karpathy/char-rnn",
        recipe=(
            "Speeches collected per role, lower case, letters, space, apostrophe, all else one sign; 56 "
            "named roles with 5,500 or more characters, 800 random positions each."
        ),
    ),
    "skin": NaturalFederation(
        about="age, sex and body site of a skin lesion (no image) → benign or malignant; a client is a medical centre",
        file="skin.csv",
        sha256="ff00d03f0f4bf6a4df7f0c8c26132c3f9b79a94c7edcb3dfaa426f025ca17131",
        clients=6,
        samples=10_228,
        metric="balanced",
        licence="CC BY-NC 4.0: for research, not with a commercial product",
        cite=(
            "ISIC 2019; HAM10000 (Tschandl et al. 2018), BCN20000 (Combalia et al. 2019), MSK (Codella et "
            "al. 2018); centres as in FLamby (Ogier du Terrail et al. 2022)"
        ),
        source="https://challenge.isic-archive.com/data/",
        recipe=(
            "One row per lesion (images of the same lesion merged) with age, sex and site known; malignant: "
            "melanoma, basal and squamous cell carcinoma, actinic keratosis."
        ),
        traps=(
            "From 0.5 % to 52 % of a centre's lesions are malignant. Coarse features, so equal rows with "
            "different targets are natural."
        ),
    ),
    "spoken_digits": NaturalFederation(
        about="spoken digit, 24 mel bands × 24 time steps → 10 classes; a client is a speaker",
        file="spoken_digits.npz",
        sha256="7977f97c4079b70be96cf18e638ad437f4c13cf728029615f5adaad1e248de30",
        clients=60,
        samples=3600,
        kind="images",
        embedded=True,
        licence="MIT",
        cite="Becker et al. 2018, AudioMNIST",
        source="https://github.com/soerenab/AudioMNIST",
        recipe=(
            "Six takes of each digit by each of 60 speakers, 48 kHz brought to 8 kHz, peak-normalised, 24 "
            "mel bands in log, stretched to 24 steps, 8 bits."
        ),
    ),
    "traffic": NaturalFederation(
        about=(
            "speed over the last hour, time of day → is the speed above 60 mph in one hour?; a client is a "
            "Los Angeles road sensor"
        ),
        file="traffic.csv.gz",
        sha256="9ec0684dc46dce2fa22dacd2bd046163f4d56bd3bcdee87ebace6fa67f36ff00",
        clients=60,
        samples=19_920,
        thresholds=(60,),
        in_time=True,
        metric="balanced",
        licence="shipped in an open repository, MIT in part; METR-LA open (not checked again)",
        cite="Jagadish et al. 2014; Zhao et al. 2020 (T-GCN); Los Angeles, 1-7 March 2012",
        source="https://github.com/lehaifeng/T-GCN",
        recipe=(
            "60 of the 183 sensors whose speed varies by more than 4 mph, every half hour, 332 samples each; the "
            "median speed is 61.5 mph."
        ),
        traps=f"One week only, with the weekend mostly in the middle third. {_TIME}",
    ),
    "vowels": NaturalFederation(
        about="10 log-area ratios of a spoken vowel → 11 English vowels; a client is a speaker",
        file="vowels.csv",
        sha256="ed05c9e39245975ab3e7f178b16626319320900f984c0d788f2472210af00638",
        clients=15,
        samples=990,
        licence=f"{_UCI}; looked for in November 2026 and not confirmed",
        cite="Deterding 1989; Robinson 1989; UCI Connectionist Bench (Vowel Recognition)",
        source="https://archive.ics.uci.edu/dataset/152/connectionist+bench+vowel+recognition+deterding+data",
        recipe="As published; word names of the vowels; sex and the official split dropped.",
        traps=(
            "Six frames per vowel and speaker, which are similar, fall on both sides of a split, so local "
            "training probably looks too good. No column names the utterance, so this cannot be mended."
        ),
    ),
    "wisdm": NaturalFederation(
        about="41 statistics of ten seconds of a phone's accelerometer → 6 activities; a client is a person",
        file="wisdm.csv.gz",
        sha256="e061d62f06b9c615b2db50648f7dcd8b70623a0657dd45533a90e9dd50f26b19",
        clients=36,
        samples=5357,
        metric="balanced",
        licence="free for research (not checked again)",
        cite="Kwapisz, Weiss, Moore 2010, SensorKDD",
        source="https://www.cis.fordham.edu/wisdm/dataset.php",
        recipe=(
            "The transformed file, 61 duplicates, the constant XAVG and ZSTD (a copy of XSTD) removed, "
            "missing peak distance set to 0."
        ),
        traps="One person has a single activity.",
    ),
    "youtube_spam": NaturalFederation(
        about="text of a comment → ham or spam; a client is a music video",
        file="youtube_spam.csv",
        sha256="86660ff231358816963c5813001703a7f1535c9d113f5a8b5935f4c82a9d23cc",
        clients=5,
        samples=1771,
        kind="text",
        licence=f"{_UCI}; what those who wrote the comments allow is not known",
        cite="Alberto, Lochter, Almeida 2015, ICMLA (TubeSpam); UCI YouTube Spam Collection",
        source="https://archive.ics.uci.edu/dataset/380/youtube+spam+collection",
        recipe="Author, date and id dropped, HTML entities resolved, repeats within a video removed.",
        traps="23 comments occur under two videos (the same spammer), with the same label.",
    ),
}
NATURAL: Mapping[str, NaturalFederation] = {
    name: replace(each, name=name, columns=COLUMNS.get(name, "")) for name, each in _TABLE.items()
}
"""All natural federations by name."""


def natural() -> Mapping[str, NaturalFederation]:
    """All natural federations by name; ``natural()["pisa"].available`` says whether one can be run here."""
    return NATURAL
