"""The columns of tables that do not come with comity, in order, after ``client`` and ``target``."""

COLUMNS = {
    "glucose": (
        "glucose1 glucose2 glucose3 mean14 sd14 glucose_yesterday hours_since regular_8h nph_18h ultralente_30h "
        "pre_breakfast pre_lunch pre_supper post_meal hour_sin hour_cos"
    ),
    "ilea_schools": (
        "year1 year2 year3 free_meals_pct vr_band1_pct gender_a gender_b vr_a vr_b vr_c ethnic1 ethnic2 ethnic3 "
        "ethnic4 ethnic5 ethnic6 ethnic7 ethnic8 ethnic9 ethnic10 ethnic11 school_gender_a school_gender_b "
        "school_gender_c denom_a denom_b denom_c"
    ),
    "landmine": "f1 f2 f3 f4 f5 f6 f7 f8 f9",
    "loans": (
        "income_log dti loan_log term60 joint emp_length emp_missing home_mortgage home_rent income_verified "
        "income_source_verified purpose_debt_consolidation purpose_credit_card purpose_home_improvement "
        "purpose_house purpose_small_business purpose_medical purpose_major_purchase credit_years delinq_2y "
        "inquiries_last_12m total_credit_lines open_credit_lines num_historical_failed_to_pay "
        "current_installment_accounts accounts_opened_24m num_satisfactory_accounts num_active_debit_accounts "
        "num_total_cc_accounts num_cc_carrying_balance num_mort_accounts public_record_bankrupt tax_liens "
        "never_delinq_pct ever_delinq months_since_inquiry credit_limit_log utilisation card_limit_log"
    ),
    "pisa": "year female mother_educ father_educ books computer internet own_room escs",
    "rain": (
        "MinTemp MaxTemp Rainfall WindGustSpeed WindSpeed9am WindSpeed3pm Humidity9am Humidity3pm Pressure9am "
        "Pressure3pm Temp9am Temp3pm RainToday WindGustDir_sin WindGustDir_cos WindDir9am_sin WindDir9am_cos "
        "WindDir3pm_sin WindDir3pm_cos doy_sin doy_cos"
    ),
    "skin": (
        "age female site_anterior_torso site_head_neck site_lateral_torso site_lower_extremity site_oral_genital "
        "site_palms_soles site_posterior_torso site_upper_extremity"
    ),
    "traffic": "now min5 min10 min15 min30 min45 min60 h_sin h_cos h2_sin h2_cos weekend",
    "vowels": "f0 f1 f2 f3 f4 f5 f6 f7 f8 f9",
    "wisdm": (
        "X0 X1 X2 X3 X4 X5 X6 X7 X8 X9 Y0 Y1 Y2 Y3 Y4 Y5 Y6 Y7 Y8 Y9 Z0 Z1 Z2 Z3 Z4 Z5 Z6 Z7 Z8 Z9 YAVG ZAVG "
        "XPEAK YPEAK ZPEAK XABSDEV YABSDEV ZABSDEV XSTD YSTD RESULTANT"
    ),
    "youtube_spam": "text",
}
